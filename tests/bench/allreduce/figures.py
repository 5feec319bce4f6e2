"""The figures of rounds, for both sides alike."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """One all-reduce of all peers. `gathering_seconds` end when there is a group; CPU time excludes them if it can."""

    gathering_seconds: float
    seconds: float
    cpu_seconds: float

    @property
    def whole_seconds(self) -> float:
        return self.gathering_seconds + self.seconds


def span(answers: Sequence[Answer], first: str, last: str) -> float:
    """Return the seconds from the first peer's `first` to the last peer's `last`."""
    return float(max(one[last] for one in answers) - min(one[first] for one in answers))


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the medians over rounds, and the range of `seconds`."""
    seconds = [one.seconds for one in rounds]
    return {
        "rounds": len(rounds),
        "seconds": _rounded(statistics.median(seconds)),
        "seconds_range": [_rounded(min(seconds)), _rounded(max(seconds))],
        "gathering_seconds": _rounded(statistics.median(one.gathering_seconds for one in rounds)),
        "whole_seconds": _rounded(statistics.median(one.whole_seconds for one in rounds)),
        "cpu_seconds": _rounded(statistics.median(one.cpu_seconds for one in rounds)),
    }


def ratios(ours: Sequence[Round], theirs: Sequence[Round]) -> dict[str, float]:
    """Return the ratios of our medians to theirs; below 1 we are faster."""
    fields = ("seconds", "whole_seconds", "cpu_seconds")
    return {
        name: _rounded(
            statistics.median(getattr(one, name) for one in ours)
            / statistics.median(getattr(one, name) for one in theirs)
        )
        for name in fields
    }


def phase_medians(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the median seconds in each phase of a round, over all peers and rounds, in order of the phases."""
    names = list(dict.fromkeys(name for one in answers for name in one["phases"]))
    return {name: _rounded(statistics.median(one["phases"].get(name, 0.0) for one in answers)) for name in names}


def _rounded(value: float) -> float:
    return round(value, 3)
