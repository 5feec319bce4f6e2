"""Peers behind routers that let no call in can take part, even if all their messages go through the host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.views.control import ask, snapshot
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import MusterError
from dht.identity import PeerId
from peer.chaos.namespaces import UPLINK, Namespaces, _run
from peer.swarm.processes import PeerProcess, end_all, kill_all, make_identity
from tests.real.conftest import RUN

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.swarm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("iptables") is None,
        reason="needs root, iproute2 and iptables",
    ),
]
PATIENCE_SECONDS = 400.0
HOMES = ("home-1", "home-2")
PORT = 7400
VERSIONS = 4  # whose group has to be all of them
DIAL = """
import asyncio, sys
from pathlib import Path
from dht.addresses import PeerAddress
from dht.daemon.process import Daemon, DaemonConfig
from dht.errors import NetworkError
from dht.identity import Identity
async def main():
    key = Path(sys.argv[1])
    Identity.load_or_create(key)
    daemon = await Daemon.start(DaemonConfig(key, client_only=True, runtime_parent=key.parent))
    try:
        await daemon.dial(PeerAddress.parse(sys.argv[2]))
        print("reached")
    except NetworkError as error:
        print(error)
    finally:
        await daemon.close()
asyncio.run(main())
"""


class Homes(Namespaces):
    """A network with peers on the switch, and peers each behind its own router, which translates addresses."""

    def add_home(self, number: int, name: str) -> None:
        """Add a router on the switch, and behind it a machine whose address means nothing outside."""
        router = f"router-{number}"
        self._plug_in(100 + number, router)
        self._ports[name] = ""  # it has no port at the switch; its namespace goes with the others
        inside, outside = self._space(name), self._space(router)
        _run("ip", "netns", "add", inside)
        _run("ip", "-n", outside, "link", "add", "lan", "type", "veth", "peer", "name", UPLINK, "netns", inside)
        _run("ip", "-n", outside, "address", "add", f"192.168.{number}.1/24", "dev", "lan")
        _run("ip", "-n", inside, "address", "add", f"192.168.{number}.2/24", "dev", UPLINK)
        _run("ip", "-n", outside, "link", "set", "lan", "up")
        for interface in ("lo", UPLINK):
            _run("ip", "-n", inside, "link", "set", interface, "up")
        _run("ip", "-n", inside, "route", "add", "default", "via", f"192.168.{number}.1")
        routed = ("ip", "netns", "exec", outside)
        _run(*routed, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        _run(*routed, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", UPLINK, "-j", "MASQUERADE")
        answers = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
        _run(*routed, "iptables", "-A", "FORWARD", "-i", UPLINK, *answers, "-j", "ACCEPT")
        _run(*routed, "iptables", "-A", "FORWARD", "-i", UPLINK, "-j", "DROP")
        self._addresses[name] = f"192.168.{number}.2"

    def address(self, name: str) -> str:
        return self._addresses[name]

    def run_in(self, name: str, *words: str) -> str:
        """Run a Python program on this machine; returns its output."""
        command = ["ip", "netns", "exec", self._space(name), sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


class Street:
    """A host, optional peers outside, and two at home."""

    def __init__(self, place: Homes, folder: Path, outside: tuple[str, ...]) -> None:
        self.place = place
        self.folder = folder
        self.outside = outside
        self.learners = (*outside, *HOMES)
        self.processes: dict[str, PeerProcess] = {}
        self.ids: dict[str, PeerId] = {name: make_identity(folder / name) for name in ("host", *self.learners)}

    def begin(self) -> None:
        config = self.folder / "run.toml"
        slow = RUN.replace("round_seconds = 4.0", "round_seconds = 20.0").replace(
            "lifetime_seconds = 3.0", "lifetime_seconds = 15.0"
        )
        config.write_text(slow.format(versions=100_000, optimizer="adamw"))
        self._start("host", "host", str(config))
        self.processes["host"].close_input()
        invite = wait_for("an invite", self._invite)
        for name in self.learners:
            self._join(name, invite)

    def _invite(self) -> str:
        assert self.processes["host"].exit_code is None, self.processes["host"].last_output()
        return str(ask(self.folder / "host", "invite")["invite"])

    def _join(self, name: str, invite: str) -> None:
        self._start(name, "join", "-", "--yes", "--name", name, "--step-seconds", "0.5")
        self.processes[name].tell(invite)

    def _start(self, name: str, *words: str) -> None:
        self.processes[name] = self.place.start(name, self.folder / name, [*words, "--port", str(PORT)], True)

    def look(self, name: str) -> PeerSnapshot:
        process = self.processes[name]
        assert process.exit_code is None, process.last_output()
        return snapshot(process.data_directory)

    def end(self) -> None:
        for process in self.processes.values():
            if process.exit_code is None:
                process.process.terminate()
        end_all(list(self.processes.values()), 60.0)


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    """Wait for the first true answer of `look`, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except MusterError:
            pass  # it is starting
        time.sleep(0.5)
    raise AssertionError(f"no {what} within {PATIENCE_SECONDS:g} seconds")


@pytest.fixture(params=[(), ("peer-1", "peer-2")], ids=["beside a host", "beside a host and two others"])
def street(request: pytest.FixtureRequest) -> Iterator[Street]:
    place = Homes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        street: Street | None = None
        try:
            place.open(("host", *request.param))
            for number, home in enumerate(HOMES, 1):
                place.add_home(number, home)
            street = Street(place, folder, request.param)
            yield street
        finally:
            if street is not None:
                kill_all(list(street.processes.values()))
            place.close()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"muster-{os.getpid()}-" not in listed


def test_peers_behind_routers_contribute_in_one_group(street: Street) -> None:
    """They do so even if no other peer trains: then all messages between the two go through the host."""
    street.begin()
    began = time.monotonic()
    everybody = {street.ids[name] for name in street.learners}
    whole: set[tuple[int, int]] = set()  # versions whose group had all of them

    def enough() -> bool:
        seen = street.look("home-1")
        for one in seen.rounds:
            if one.outcome == "certified" and set(one.members) == everybody:
                whole.add((one.fragment, one.version))
        return len(whole) >= VERSIONS and all(seen.credited_tokens.get(peer) for peer in everybody)

    wait_for("versions of all", enough)
    seconds = time.monotonic() - began
    _check_reach(street)
    seen = street.look("home-1")
    found = {
        "outside": len(street.outside),
        "seconds": round(seconds),
        "versions": seen.certified.versions,
        "versions_of_all": len(whole),
        "members_mean": round(seen.certified.members / max(1, seen.certified.versions), 2),
        "rounds_void": {name: street.look(name).events.get("round_void", 0) for name in street.learners},
        "credited_tokens": {name: seen.credited_tokens.get(street.ids[name], 0) for name in street.learners},
        "megabytes_sent": {name: round(street.look(name).bytes_sent / 1e6, 1) for name in street.ids},
    }
    print(json.dumps(found))
    street.end()
    assert all(process.exit_code == 0 for process in street.processes.values())


def _check_reach(street: Street) -> None:
    """Check that no stranger reaches a peer at home, not even through the host, and that each peer knows this."""
    for name in ("host", *street.outside):
        assert street.look(name).dialable
    for name in HOMES:
        wait_for("word of who gets through", lambda n=name: not street.look(n).dialable)
    place, key = street.place, street.folder / "stranger.key"
    relay = f"/ip4/{place.address('host')}/tcp/{PORT}/p2p/{street.ids['host']}"
    for name in HOMES:
        direct = f"/ip4/{place.address(name)}/tcp/{PORT}/p2p/{street.ids[name]}"
        for address in (direct, f"{relay}/p2p-circuit/p2p/{street.ids[name]}"):
            assert "does not answer" in place.run_in("host", "-c", DIAL, str(key), address)
