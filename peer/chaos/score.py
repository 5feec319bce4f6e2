"""The figures of a chaos run, from its recorded events (docs/how-to/chaos.md). Seconds of one monotonic clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from peer.chaos.record import EventOutcome, Life

STEP_PAUSES_MAX = 3.0  # step times from one step to the next, within which a learner counts as busy
STEP_PAUSE_SECONDS_MIN = 3.0  # peers are polled twice a second, and late on busy cores


@dataclass(frozen=True, slots=True)
class Window:
    """The measured time."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def overlap(self, start: float, end: float) -> float:
        """Return how much of this span lies inside."""
        return max(0.0, min(end, self.end) - max(start, self.start))

    def __contains__(self, seconds: float) -> bool:
        return self.start <= seconds <= self.end


def alive_seconds(outcomes: Iterable[EventOutcome], learners: Sequence[str], window: Window) -> float:
    """Return the peer-seconds that the plan left to the learners.

    The time from a kill to the restart, and from a stop to its end, is excluded. Slow restarts and unplanned deaths
    are not excluded. Nor are attackers and wrong clocks: the run measures the loss that they cause to others.
    """
    absent_since: dict[str, float] = {}
    absent = 0.0
    for one in sorted(outcomes, key=lambda one: one.seconds):
        name, event = one.event.target, one.event.do
        if one.refusal is not None or name not in learners:
            continue
        if event in ("kill", "stop"):
            absent_since.setdefault(name, one.seconds)
        elif event in ("restart", "continue") and name in absent_since:
            absent += window.overlap(absent_since.pop(name), one.seconds)
    absent += sum(window.overlap(since, window.end) for since in absent_since.values())
    return len(learners) * window.seconds - absent


def uptime(lives: Mapping[str, Sequence[Life]], peers: int, window: Window, step_seconds: float) -> float:
    """Return the share of all peers' time in which their learners made steps."""
    pause = max(STEP_PAUSE_SECONDS_MIN, STEP_PAUSES_MAX * step_seconds)
    stretches = (pair for of_peer in lives.values() for life in of_peer for pair in pairwise(life.stepped_at))
    busy = sum(window.overlap(before, after) for before, after in stretches if after - before <= pause)
    return busy / (peers * window.seconds)


def longest_gap_seconds(certified_at: Iterable[float], window: Window) -> float:
    """Return the longest time without a certificate, including before the first and after the last one."""
    times = sorted(one for one in certified_at if one in window)
    return max(after - before for before, after in pairwise([window.start, *times, window.end]))


def recoveries(
    outcomes: Iterable[EventOutcome], lives: Mapping[str, Sequence[Life]], window: Window
) -> tuple[list[float], int]:
    """Return seconds from each restart to the peer's next certified contribution, and how many restarts had none.

    A peer that was hit again before it could contribute counts as neither.
    """
    seconds, missing = [], 0
    fired = sorted((one for one in outcomes if one.refusal is None), key=lambda one: one.seconds)
    for index, one in enumerate(fired):
        name = one.event.target
        if one.event.do != "restart" or name not in lives:
            continue
        hit_again = next(
            (later.seconds for later in fired[index + 1 :] if later.event.target == name and later.is_fault), None
        )
        contributed = (life.contributed_at for life in lives[name])
        back = next((at for at in contributed if at is not None and one.seconds < at < (hit_again or window.end)), None)
        if back is not None:
            seconds.append(back - one.seconds)
        elif hit_again is None:
            missing += 1
    return seconds, missing


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return median and maximum; empty if there are no values."""
    return {"median": statistics.median(seconds), "max": max(seconds)} if seconds else {}


def counts(outcomes: Iterable[EventOutcome]) -> dict[str, int]:
    """Return how often each fault fired."""
    found: dict[str, int] = {}
    for one in outcomes:
        if one.is_fault:
            found[one.event.name] = found.get(one.event.name, 0) + 1
    return found
