"""The rate of peers' steps within windows of time, from occasional counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from peer.chaos.score import Window

Told = Sequence[tuple[float, int]]
"""When a peer was asked, in seconds of one clock, and the steps that it had made by then."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Steps of peers, and the peer-seconds in which they made them."""

    steps: float
    peer_seconds: float

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.peer_seconds if self.peer_seconds else 0.0


def rate(told: Mapping[str, Told], windows: Iterable[Window]) -> Rate:
    """Return the rate of all peers together; steps between two counts are spread evenly over the time."""
    windows = list(windows)
    steps = seconds = 0.0
    for answers in told.values():
        for (earlier, before), (later, after) in pairwise(answers):
            inside = sum(window.overlap(earlier, later) for window in windows)
            if later > earlier:
                steps += (after - before) * inside / (later - earlier)
                seconds += inside
    return Rate(steps, seconds)
