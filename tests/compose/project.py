"""A swarm under docker-compose, driven and read from outside as its user would: `docker` and `muster status` only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from coordinator.views.snapshot import PeerSnapshot
from peer.chaos.executor import LinkFault
from peer.chaos.user_link import UserLink
from peer.swarm.watch import at_rest, same_heads
from tests.checkout import ROOT

PROFILES = ("--profile", "home", "--profile", "attackers", "--profile", "chaos")
PEERS = 4
COMMAND_SECONDS_MAX = 180.0
BUILD_SECONDS_MAX = 3600.0
PATIENCE_SECONDS = 300.0  # the cores may have other work; nothing here is judged by its speed
POLL_SECONDS = 2.0
FINAL_SNAPSHOT = (
    "from pathlib import Path; from coordinator.views.control import snapshot;"
    "print(snapshot(Path('/data/muster'), 'final').model_dump_json())"
)
# As small as in tests/real, with time for peers that share two cores with seven others; paced by STEP_SECONDS.
STEP_SECONDS = "0.2"
RUN = """
versions = 1000000
[model]
hidden_size = 32
layers = 1
heads = 2
intermediate_size = 64
[data]
context_tokens = 32
sequences_per_step = 2
evaluation_tokens = 2048
[inner]
optimizer = "adamw"
warmup_steps = 4
[pace]
fragments = 4
steps_per_version = 16
presence_seconds = 3.0
presence_lifetime_seconds = 15.0
round_seconds = 10.0
"""


def run(*words: str, seconds: float = COMMAND_SECONDS_MAX, **variables: str) -> str:
    """The output of a command that has to succeed."""
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=seconds, env=os.environ | variables, cwd=ROOT, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def docker(*words: str) -> str:
    return run("docker", *words)


def wait_until(what: str, done: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> float:
    """Returns the seconds that it took."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() < began + seconds, f"not within {seconds:g} s: {what}"
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def compose_command() -> Sequence[str]:
    """Compose v2, else docker-compose; skips the test that asks if there is neither, or no engine."""
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command on this machine")
    engine = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    if engine.returncode != 0:
        pytest.skip(f"no container engine can be reached: {engine.stderr.strip().splitlines()[-1]}")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return "docker", "compose"
    if shutil.which("docker-compose") is None:
        pytest.skip("there is neither docker compose nor docker-compose on this machine")
    return ("docker-compose",)


@dataclass(frozen=True, slots=True)
class Container:
    """One host or peer."""

    id: str

    def run(self, *words: str) -> str:
        """What a command prints inside."""
        return docker("exec", self.id, *words)

    def status(self) -> PeerSnapshot | None:
        """What the peer says of itself; None while it says nothing."""
        with suppress(AssertionError):
            return PeerSnapshot.model_validate_json(self.run("muster", "status", "--json"))
        return None

    def versions(self) -> int:
        """Certified versions over all fragments, as far as this peer knows."""
        status = self.status()
        return 0 if status is None else sum(fragment.version for fragment in status.fragments)

    def final(self) -> PeerSnapshot:
        """Its status with digests hashed from the tensors."""
        return PeerSnapshot.model_validate_json(self.run("python3", "-c", FINAL_SNAPSHOT))

    def address(self, network: str) -> str:
        return docker("inspect", "-f", f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}', self.id)

    def restarts(self) -> int:
        """How often the engine started it again because it had failed."""
        return int(docker("inspect", "-f", "{{.RestartCount}}", self.id))

    def exit_code(self) -> int:
        return int(docker("inspect", "-f", "{{.State.ExitCode}}", self.id))

    def can_connect(self, address: str, port: int = 7400) -> bool:
        """Whether a TCP connection from here gets there."""
        with suppress(AssertionError):
            self.run("timeout", "5", "bash", "-c", f"</dev/tcp/{address}/{port}")
            return True
        return False


class Project:
    """`docker compose` for one project name, with the run above and a port of its own for the dashboard."""

    def __init__(self, compose: Sequence[str], run_file: Path) -> None:
        run_file.write_text(RUN)
        self.name = f"muster-test-{uuid4().hex[:8]}"
        self._compose = (*compose, "--project-name", self.name)
        self.plan = run_file.with_name("plan.toml")
        self.plan.write_text("")
        self._variables = {
            "RUN_FILE": str(run_file),
            "PLAN_FILE": str(self.plan),
            "STEP_SECONDS": STEP_SECONDS,
            "DASHBOARD_PORT": "0",
        }

    def compose(self, *words: str, seconds: float = COMMAND_SECONDS_MAX) -> str:
        return run(*self._compose, *words, seconds=seconds, **self._variables)

    def build(self) -> None:
        self.compose("build", "host", seconds=BUILD_SECONDS_MAX)

    def up(self, peers: int = PEERS, home: int = 0) -> None:
        """Host and so many peers, whatever there was before."""
        scale = ("--scale", f"peer={peers}", "--scale", f"home={home}")
        self.compose(*PROFILES, "up", "--detach", "--no-build", *scale, "host", "peer", "home")

    def down(self, *words: str) -> None:
        self.compose(*PROFILES, "down", *words)

    def containers(self, service: str) -> list[Container]:
        """Those that run, in the order of their numbers."""
        label = "label=com.docker.compose"
        # an image that docker compose has built carries the first two as well, and so does whatever runs it
        wanted = (f"{label}.project={self.name}", f"{label}.service={service}", f"{label}.container-number")
        words = [word for one in wanted for word in ("--filter", one)]
        found = docker("ps", *words, "--format", '{{.Label "com.docker.compose.container-number"}} {{.ID}}')
        numbered = [line.split() for line in found.splitlines()]
        return [Container(identity) for _, identity in sorted(numbered, key=lambda line: int(line[0]))]

    @property
    def host(self) -> Container:
        (host,) = self.containers("host")
        return host

    def everyone(self) -> list[Container]:
        """The host and all peers."""
        return [container for service in ("host", "peer", "home") for container in self.containers(service)]

    @property
    def network(self) -> str:
        return f"{self.name}_public"

    def left(self, kind: str) -> set[str]:
        """Names of what the engine still has of this project: `container`, `network` or `volume`."""
        every = ("--all",) if kind == "container" else ()
        names = docker(kind, "ls", *every, "--format", "{{json .}}", "--filter", f"name={self.name}").splitlines()
        return {found.get("Names") or found["Name"] for found in map(json.loads, names)}


def wait_until_training(peers: Collection[Container]) -> None:
    """Until the learner of each steps."""
    for peer in peers:
        wait_until("training", lambda peer=peer: (now := peer.status()) is not None and now.state == "training")


def wait_for_versions(containers: Collection[Container], more: int = 8) -> None:
    """Until each has seen so many more versions certified."""
    goals = [(container, container.versions() + more) for container in containers]
    for container, goal in goals:
        wait_until(f"{goal} versions", lambda container=container, goal=goal: container.versions() >= goal)


def wait_for_agreement(project: Project) -> None:
    """Have all learners rest until everybody holds the same versions; then all must hold the same bytes."""
    everyone = project.everyone()
    learners = [container for container in everyone if container != project.host]
    for peer in learners:
        peer.run("muster", "pause")
    finals: list[PeerSnapshot] = []

    def settled() -> bool:
        told = [status for container in everyone if (status := container.status()) is not None]
        if len(told) == len(everyone) and at_rest(told):
            finals[:] = [container.final() for container in everyone]
        return bool(finals) and same_heads(finals)  # else a round ended while they were asked

    try:
        wait_until("one state everywhere", settled)
        assert len({(final.run_id, final.digests_from_tensors) for final in finals}) == 1
        assert all(final.digests_from_tensors for final in finals)
    finally:
        for peer in learners:
            peer.run("muster", "resume")


@contextmanager
def bad_link(project: Project, container: Container, megabits: float, delay: float, loss: float) -> Iterator[None]:
    """Between this container and everybody else; see `peer.chaos.link`."""
    (index,) = set(container.run("bash", "-c", "cat /sys/class/net/eth*/iflink").split())
    image = docker("inspect", "-f", "{{.Image}}", container.id)
    process = UserLink.start(
        (
            *("docker", "run", "--interactive", "--rm", "--name", f"{project.name}-link", "--user", "root"),
            *("--network", "host", "--device", "/dev/net/tun", "--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW"),
            *("--no-healthcheck", "--entrypoint", "python3", image, "-m", "peer.chaos.link", index, "bad-link"),
        )
    )
    try:
        process.shape(LinkFault(delay, loss, megabits * 1e6))
        yield
    finally:
        process.end()
