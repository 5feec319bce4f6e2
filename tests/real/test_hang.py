"""A learner process that hangs, as on a GPU or a disk that does not answer: its peer goes on, and ends in order."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from coordinator.views.control import ask
from coordinator.views.snapshot import PeerSnapshot
from peer.chaos.executor import family
from peer.service.process import STOP_SECONDS_MAX
from tests.real.conftest import Machines, invite_of, version_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(900)]

ENDING_SECONDS = 2 * STOP_SECONDS_MAX  # with a round's deadline of 4 s


def learner_of(now: PeerSnapshot) -> int:
    """Return the id of the process that trains for this peer."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(now.pid)}
    (found,) = (pid for pid, command in commands.items() if b"peer.learner.process" in command)
    return found


def test_a_learner_that_hangs_is_replaced_and_keeps_nobody_from_ending(machines: Machines) -> None:
    host = machines.host()
    first, second, _ = (machines.learner(f"peer-{number}", invite_of(host)) for number in (1, 2, 3))
    hung = machines.wait(second, lambda now: version_of(now) > 1 and now.state == "training")
    ask(second, "save")
    os.kill(learner_of(hung), signal.SIGSTOP)
    told = machines.wait(second, lambda now: bool(now.advice))
    assert "the learner made no step for 3" in told.advice
    assert (told.events["learner_hangs"], told.steps_per_second) == (1, 0.0)
    versions = version_of(machines.wait(first, lambda now: True))
    assert versions > version_of(hung), "nobody has waited for it"
    back = machines.wait(second, lambda now: now.state == "training" and now.steps_per_second > 0)
    assert (back.advice, back.pid) == ("", hung.pid)
    assert back.steps > hung.steps, "it has begun with what was saved"
    credited = back.credited_tokens[back.peer_id]
    back = machines.wait(second, lambda now: now.credited_tokens[now.peer_id] > credited)

    os.kill(learner_of(back), signal.SIGSTOP)
    process, since = machines.processes["peer-2"], time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENDING_SECONDS) == 1
    assert time.monotonic() - since < STOP_SECONDS_MAX
    assert "the learner did not answer within" in machines.said("peer-2")
    again = machines.learner("peer-2", invite_of(host))
    machines.wait(again, lambda now: now.state == "training" and version_of(now) > versions)
