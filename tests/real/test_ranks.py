"""A peer whose learner is two processes: others see a peer like any, and it goes on when one process is killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from coordinator.views.control import ask
from coordinator.views.snapshot import PeerSnapshot
from peer.chaos.executor import family
from tests.real.conftest import Machines, invite_of, version_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(900)]

BACK_SECONDS = 60.0


def states(now: PeerSnapshot) -> set[tuple[int, int, str]]:
    """Return fragment, version and digest of the states that a peer holds."""
    return {(index, one.version, one.state) for index, one in enumerate(now.fragments) if one.version}


def processes_of(now: PeerSnapshot) -> list[int]:
    """Return the process ids of its learner, in order."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(now.pid)}
    return sorted(pid for pid, command in commands.items() if b"peer.learner.process" in command)


def test_a_learner_of_two_processes_in_a_swarm(machines: Machines) -> None:
    host = machines.host()
    plain = machines.learner("plain", invite_of(host))
    several = machines.peer(
        "several", "join", invite_of(host), "--yes", "--device", "cpu,cpu", "--threads", "2", "--step-seconds", "0.05"
    )
    now = machines.wait(several, lambda now: version_of(now) > 1 and now.credited_tokens.get(now.peer_id, 0) > 0)
    assert len(processes_of(now)) == 2
    assert now.device.startswith("2 × CPU, 1 thread:")
    seen: dict[Path, set[tuple[int, int, str]]] = {plain: set(), several: set()}

    def agree(data: Path, found: PeerSnapshot) -> bool:
        seen[data] |= states(found)
        return len(seen[plain] & seen[several]) > 3

    machines.wait(plain, lambda found: agree(plain, found) or agree(several, machines.wait(several, lambda _: True)))
    places = {(fragment, version) for fragment, version, _ in seen[plain] | seen[several]}
    assert len(places) == len(seen[plain] | seen[several]), "one state for each version of a fragment"
    credited = machines.wait(plain, lambda found: now.peer_id in found.credited_tokens).credited_tokens[now.peer_id]

    ask(several, "save")
    killed_at = time.monotonic()
    os.kill(processes_of(now)[1], signal.SIGKILL)
    lost = machines.wait(several, lambda found: found.events.get("learner_lost", 0) == 1)
    back = machines.wait(several, lambda found: found.state == "training" and found.steps_per_second > 0)
    assert time.monotonic() - killed_at < BACK_SECONDS
    assert (lost.pid, back.pid) == (now.pid, now.pid), "the peer itself has gone on"
    assert len(processes_of(back)) == 2
    machines.wait(plain, lambda found: found.credited_tokens[now.peer_id] > credited)
