"""Virtual time: a heap of scheduled callbacks."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class VirtualClock:
    """A clock that runs callbacks in order of time; equal times in order of scheduling, so that runs repeat exactly."""

    now: float = 0.0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _scheduled: int = 0

    def after(self, delay_seconds: float, call: Callable[[], None]) -> None:
        """Run `call` once `delay_seconds` of virtual time have passed."""
        self._scheduled += 1
        heapq.heappush(self._heap, (self.now + max(delay_seconds, 0.0), self._scheduled, call))

    def step(self, until: float) -> bool:
        """Run the next callback due by `until`; if there is none, move time to `until` and return False."""
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now, _, call = heapq.heappop(self._heap)
        call()
        return True
