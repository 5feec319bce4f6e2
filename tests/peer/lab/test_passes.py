"""Whole labs that read in passes: the windows that learners really read, and their replay from a tape."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from coordinator.chain.passes import PassPlan, ReadingLane
from dht.identity import PeerId
from peer.data.windows import PassWindows, training_windows
from peer.lab.laboratory import Laboratory
from peer.lab.options import Failures, LabOptions, Scavenge
from peer.lab.replay import replay_tape
from peer.learner.gradient.batch_ahead import Batches
from tests.extra import extra
from tests.peer.lab import small

PASSES = {"data.order": "passes"}
COMINGS_AND_GOINGS: dict[str, Any] = {"speeds": (1.0, 0.5, 4.0), "failures": Failures(40, 8)}


class Noted:
    """A learner's batches, which note the numbers of the windows that it reads."""

    def __init__(self, batches: Batches, numbers: set[int]) -> None:
        self._batches = batches
        self._numbers = numbers

    def batch(self, window: int) -> Tensor:
        self._numbers.add(window)
        return self._batches.batch(window)


class Watched(Laboratory):
    """A laboratory that keeps the numbers of the windows that each learner reads."""

    def windows(self, peer: PeerId) -> Batches:
        self.__dict__.setdefault("read", defaultdict(set))
        return Noted(super().windows(peer), self.__dict__["read"][peer])


def readings(chosen: LabOptions) -> tuple[dict[PeerId, set[int]], dict[PeerId, PassPlan], Laboratory]:
    """Run a lab; returns the windows that each learner read, and each one's plan of the passes."""
    text = small.text()
    with Watched(chosen, text) as lab:
        lab.run()
    found: dict[PeerId, set[int]] = dict(lab.__dict__["read"])
    deals: dict[PeerId, PassPlan] = {}
    for peer in found:
        windows = training_windows(text.train, chosen.config, lab.world.manifest.run_id, peer)
        assert isinstance(windows, PassWindows)
        deals[peer] = windows.deal
    return found, deals, lab


def readers(read: dict[PeerId, set[int]], deals: dict[PeerId, PassPlan], guests: bool) -> dict[Any, set[PeerId]]:
    """Return the peers that have read each window, by pass and window, as members or as guests."""
    found: dict[Any, set[PeerId]] = defaultdict(set)
    for peer, numbers in read.items():
        for number in numbers:
            if guests != bool(ReadingLane.of(number).lanes):
                for sequence in range(deals[peer].sequences_per_step):
                    found[deals[peer].sequence(number, sequence)].add(peer)
    return found


@pytest.mark.parametrize(
    "given",
    [*extra([COMINGS_AND_GOINGS]), {"scavenge": Scavenge(2, 12, 32), "late_joins": True}],
    ids=["deaths", "late comers"],
)
def test_no_two_learners_read_one_window_in_one_pass(given: dict[str, Any]) -> None:
    read, deals, lab = readings(small.options(3, 48, {**PASSES, "seed": 1}, **given))
    by_members, by_guests = (readers(read, deals, guests) for guests in (False, True))
    assert lab.world.versions() >= 10
    assert len(by_members) > 200
    assert all(len(peers) == 1 for peers in by_members.values())
    assert not by_members.keys() & by_guests.keys()
    assert len({ReadingLane.of(number).version for numbers in read.values() for number in numbers}) > 5


def test_a_run_that_its_text_suffices_for_reads_nothing_twice() -> None:
    """30,000 letters are 1874 windows, 141 for each of 13 versions of fragment 0; three learners read 24 of them."""
    read, deals, _ = readings(small.options(3, 48, PASSES))
    found = readers(read, deals, False)
    assert len(found) == 3 * 48 * 2
    assert {of_pass for of_pass, _ in found} == {(0, 0)}


def test_a_replay_reads_the_same(tmp_path: Path) -> None:
    chosen = small.options(3, 32, {**PASSES, "seed": 3}, **COMINGS_AND_GOINGS)
    report = small.run_taped(chosen, tmp_path / "tape.jsonl")
    assert replay_tape(tmp_path / "tape.jsonl", small.text()).versions == report.versions_certified > 5
