"""Due times of rounds: the median voter sets the pace (design §6.2 step 1). Pure functions of plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high, median_low
from typing import NamedTuple

from coordinator.run.manifest import PaceSpec

SPACING_SHARE = 0.8  # openings keep at least this share of the expected spacing, so that fragments do not burst
QUORUM_INTERVALS = 3.0  # expected intervals after which K voters are enough to open a round


class VoterPace(NamedTuple):
    """One voter's speed as we know it: `steps` made at time `seen`, going on at `steps_per_second`.

    At version 0 there is one for every peer that trains, taken anew from its newest presence each time.
    """

    steps: float
    seen: float
    steps_per_second: float

    def reaches(self, steps: float) -> float:
        """Return when this voter will have made `steps`; infinity if it stands still."""
        if steps <= self.steps:
            return self.seen
        return self.seen + (steps - self.steps) / self.steps_per_second if self.steps_per_second > 0 else math.inf


def steps_needed(pace: PaceSpec, fragment: int, version: int) -> float:
    """Return the steps until a version is due: H; in the first cycle (p+1)·H/P of all steps for fragment p."""
    if version == 0:
        return (fragment + 1) * pace.steps_per_version / pace.fragments
    return pace.steps_per_version


def median_time(voters: Sequence[VoterPace], steps: float) -> float:
    """Return when the median voter (the lower of an even number) will have made `steps`; infinity without voters."""
    return _median([voter.reaches(steps) for voter in voters])


def _median(times: Sequence[float]) -> float:
    return median_low(times) if times else math.inf


def due_time(voters: Sequence[VoterPace], steps: float, quorum: int, patience_until: float) -> float:
    """Return when a round opens: with the median voter, or after `patience_until` with the K-th.

    The second case is for a swarm in which most peers stand still (paused, gone). It must come late enough that a
    few fast peers do not set the pace.
    """
    times = sorted([voter.reaches(steps) for voter in voters])
    kth = times[quorum - 1] if 0 < quorum <= len(times) else math.inf
    return min(_median(times), max(kth, patience_until))


def median_rate(voters: Sequence[VoterPace]) -> float:
    """Return the median steps per second (the upper of an even number) of the voters that move; 0 if none does."""
    rates = [voter.steps_per_second for voter in voters if voter.steps_per_second > 0]
    return median_high(rates) if rates else 0.0


def interval_seconds(pace: PaceSpec, rate: float) -> float:
    """Return the expected time between two versions at this `median_rate`; a round's deadline while nobody moves."""
    return pace.steps_per_version / rate if rate > 0 else pace.round_seconds


def spacing_seconds(pace: PaceSpec, rate: float) -> float:
    """Return the least time between two openings: 0.8 of H/P steps of the median voter; 0 while nobody moves."""
    return SPACING_SHARE * pace.steps_per_version / (pace.fragments * rate) if rate > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fragment that could be opened."""

    fragment: int
    version: int
    due_at: float


def next_to_open(candidates: Sequence[Candidate], now: float) -> Candidate | None:
    """Return the due fragment with the lowest version, then the lowest index; None if none is due."""
    due = [candidate for candidate in candidates if candidate.due_at <= now]
    return min(due, key=lambda candidate: (candidate.version, candidate.fragment), default=None)
