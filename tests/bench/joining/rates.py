"""How fast peers made steps within some stretches of time, from what they told now and then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from peer.chaos.score import Window

Told = Sequence[tuple[float, int]]
"""When a peer was asked, in seconds of one clock, and the steps that it had made by then."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Steps per second of peers, and of how many peer-seconds that is the mean."""

    steps: float
    peer_seconds: float

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.peer_seconds if self.peer_seconds else 0.0


def rate(told: Mapping[str, Told], windows: Iterable[Window]) -> Rate:
    """Of all peers together; steps between two answers are spread evenly over the time between them."""
    windows = list(windows)
    steps = seconds = 0.0
    for answers in told.values():
        for (earlier, before), (later, after) in pairwise(answers):
            inside = sum(window.overlap(earlier, later) for window in windows)
            if later > earlier:
                steps += (after - before) * inside / (later - earlier)
                seconds += inside
    return Rate(steps, seconds)
