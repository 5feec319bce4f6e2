"""Two minor versions of the protocol in one real swarm, and each replaces the other (design §8)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.run.compatibility import OURS
from coordinator.views.control import snapshot
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR
from tests.real.conftest import ROOT, Machines, invite_of, version_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(900)]

OLDER, NEWER = "peer.cli", "tests.real.next_minor"
MORE_VERSIONS = 4


def test_the_newer_one_says_that_it_is() -> None:
    told = [
        subprocess.run([sys.executable, "-m", program, "version"], cwd=ROOT, capture_output=True, text=True, check=True)
        for program in (OLDER, NEWER)
    ]
    assert [one.stdout.rpartition("protocol ")[2].strip() for one in told] == [
        OURS,
        f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR + 1}",
    ]


def test_both_certify_together_and_come_back_as_the_other(machines: Machines) -> None:
    host = machines.host()
    invite = invite_of(host)
    programs = {"peer-1": OLDER, "peer-2": NEWER, "peer-3": NEWER}
    learners = {name: machines.learner(name, invite, program) for name, program in programs.items()}
    all_work_counts(machines, learners)
    for name in ("peer-1", "peer-2"):
        machines.end(name)
        programs[name] = NEWER if programs[name] == OLDER else OLDER
        machines.learner(name, invite, programs[name])
        all_work_counts(machines, learners)
    assert programs == {"peer-1": NEWER, "peer-2": OLDER, "peer-3": NEWER}
    for data in (host, *learners.values()):
        assert snapshot(data).bans == ()


def all_work_counts(machines: Machines, learners: dict[str, Path]) -> None:
    """Wait until the host has credited more work of each learner, and some versions were made."""
    host = machines.folder / "host"
    ids = [machines.id_of(data) for data in learners.values()]
    before = snapshot(host)
    machines.wait(
        host,
        lambda now: (
            version_of(now) >= version_of(before) + MORE_VERSIONS
            and all(now.credited_tokens.get(one, 0) > before.credited_tokens.get(one, 0) for one in ids)
        ),
    )
