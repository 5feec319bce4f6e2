"""The swarm of docker-compose.yml: what `up` gives, and what remains of it when containers and networks fail.

Every test ends in agreement: all containers hold the same bytes, hashed from the tensors.
"""

from __future__ import annotations

import time
import urllib.request

from tests.compose.project import (
    Container,
    Project,
    bad_link,
    docker,
    wait_for_agreement,
    wait_for_versions,
    wait_until,
    wait_until_training,
)

OFFLINE_SECONDS = 60.0
DIALS = 5


def contributed(container: Container, peer_id: str) -> int:
    """Certified tokens of this peer, as far as the container knows."""
    now = container.status()
    return 0 if now is None else now.credited_tokens.get(peer_id, 0)


def peer_id(container: Container) -> str:
    now = container.status()
    assert now is not None
    return now.peer_id


def test_up_gives_a_swarm_that_certifies(project: Project) -> None:
    began = time.monotonic()
    project.compose("up", "--detach", "--no-build")
    peers = project.containers("peer")
    assert len(peers) == 4
    wait_until("first version", lambda: peers[0].versions() > 0)
    print(f"\nfrom up to the first certified version: {time.monotonic() - began:.0f} s")
    wait_for_versions(project.everyone())
    for container in project.everyone():
        assert container.run("id", "--user", "--name") == "muster"
        wait_until(
            "healthy", lambda c=container: docker("inspect", "-f", "{{.State.Health.Status}}", c.id) == "healthy"
        )
    wait_for_agreement(project)


def test_dashboard_is_served_here_only(project: Project) -> None:
    project.compose("up", "--detach", "--no-build")
    (dashboard,) = project.containers("dashboard")
    place = docker("port", dashboard.id, "8501")
    assert place.startswith("127.0.0.1:")

    def served() -> bool:
        try:
            with urllib.request.urlopen(f"http://{place}/_stcore/health", timeout=5) as answer:
                return bool(answer.read() == b"ok")
        except OSError:
            return False

    wait_until("the dashboard", served)
    project.compose("rm", "--stop", "--force", "dashboard")


def test_peer_is_killed_and_comes_back(swarm: Project) -> None:
    victim, *others = swarm.containers("peer")
    name = peer_id(victim)
    docker("kill", victim.id)
    wait_for_versions([*others, swarm.host])
    docker("start", victim.id)
    wait_until_training([victim])
    assert peer_id(victim) == name
    before = contributed(others[0], name)
    wait_until("a contribution of the one that was killed", lambda: contributed(others[0], name) > before)
    wait_for_agreement(swarm)


def test_host_is_killed_and_comes_back(swarm: Project) -> None:
    host, peers = swarm.host, swarm.containers("peer")
    run_id = host.final().run_id
    docker("kill", host.id)
    wait_for_versions(peers)
    docker("start", host.id)
    wait_until("the host", lambda: (now := host.status()) is not None and now.run_id == run_id)
    wait_for_versions(swarm.everyone())
    wait_for_agreement(swarm)


def test_stop_drains(swarm: Project) -> None:
    leaver, *others = swarm.containers("peer")
    docker("stop", "--time", "60", leaver.id)
    assert leaver.exit_code() == 0
    assert "this peer has left the run" in docker("logs", "--tail", "1", leaver.id)
    wait_for_versions([*others, swarm.host])
    wait_for_agreement(swarm)


def test_peer_is_paused_for_a_minute(swarm: Project) -> None:
    victim, *others = swarm.containers("peer")
    before = victim.versions()
    docker("pause", victim.id)
    try:
        time.sleep(OFFLINE_SECONDS)
        assert min(other.versions() for other in others) > before
    finally:
        docker("unpause", victim.id)
    wait_for_versions(swarm.everyone())
    wait_for_agreement(swarm)


def test_network_is_cut_in_two_and_heals(swarm: Project) -> None:
    """The smaller side gets other addresses both times, as a laptop that is carried elsewhere and back."""
    swarm.up(peers=5)
    peers = swarm.containers("peer")
    wait_until_training(peers)
    wait_for_versions(swarm.everyone())
    smaller, larger = peers[:2], peers[2:]
    island = f"{swarm.name}_island"
    docker("network", "create", island)
    try:
        for peer in smaller:
            docker("network", "connect", island, peer.id)
            docker("network", "disconnect", swarm.network, peer.id)
        time.sleep(OFFLINE_SECONDS)
        wait_for_versions([*larger, swarm.host])
        assert not smaller[0].can_connect("host")
    finally:
        for peer in smaller:
            docker("network", "disconnect", island, peer.id)
            docker("network", "connect", swarm.network, peer.id)
        docker("network", "rm", island)
    names = [peer_id(peer) for peer in smaller]
    before = [contributed(larger[0], name) for name in names]
    wait_until(
        "a contribution of each that was away",
        lambda: all(contributed(larger[0], name) > had for name, had in zip(names, before, strict=True)),
    )
    wait_for_versions(swarm.everyone())
    wait_for_agreement(swarm)


def test_one_link_is_slow_long_and_lossy(swarm: Project) -> None:
    far, near, *_ = swarm.containers("peer")
    name = peer_id(far)
    with bad_link(swarm, far, megabits=20, delay=0.025, loss=0.01):
        connect = (
            "import socket, time; began = time.monotonic(); socket.create_connection(('host', 7400)).close();"
            "print(time.monotonic() - began)"
        )
        assert min(float(far.run("python3", "-c", connect)) for _ in range(DIALS)) >= 0.05
        before = contributed(near, name)
        wait_for_versions(swarm.everyone(), more=16)
        wait_until("a contribution over the bad link", lambda: contributed(near, name) > before)
        wait_for_agreement(swarm)


def test_up_to_eight_and_down_to_three(swarm: Project) -> None:
    swarm.up(peers=8)
    peers = swarm.containers("peer")
    assert len(peers) == 8
    wait_until_training(peers)
    names = {peer_id(peer) for peer in peers}
    assert len(names) == 8
    wait_until("a contribution of each", lambda: all(contributed(swarm.host, name) for name in names))
    wait_for_agreement(swarm)
    swarm.up(peers=3)
    assert len(swarm.containers("peer")) == 3
    wait_for_versions(swarm.everyone())
    wait_for_agreement(swarm)


def test_peers_at_home_only_dial_out(swarm: Project) -> None:
    swarm.up(peers=2, home=2)
    outside, _ = swarm.containers("peer")
    at_home = swarm.containers("home")
    wait_until_training(at_home)
    for container in at_home:
        assert not outside.can_connect(container.address(f"{swarm.name}_home"))
        assert not outside.can_connect(container.address(swarm.network))
        assert container.can_connect("host")
        name = peer_id(container)
        before = contributed(outside, name)
        wait_until("a contribution from home", lambda n=name, b=before: contributed(outside, n) > b)
    wait_for_agreement(swarm)


def test_down_leaves_the_volumes_and_up_finds_everyone_in_them(swarm: Project) -> None:
    def identities() -> set[tuple[str, str]]:
        finals = [container.final() for container in swarm.everyone()]
        return {(final.run_id, final.peer_id) for final in finals}

    before, versions = identities(), swarm.host.versions()
    assert len(before) == 5
    swarm.down()
    assert swarm.left("container") == set()
    assert swarm.left("network") == set()
    assert swarm.left("volume") == {f"{swarm.name}_{volume}" for volume in ("host", "peers", "invite")}
    swarm.up()
    wait_until_training(swarm.containers("peer"))
    assert identities() == before
    assert swarm.host.versions() >= versions
    wait_for_versions(swarm.everyone())
    wait_for_agreement(swarm)
