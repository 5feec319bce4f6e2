"""The rate of incoming bytes, and the time for the rest at that rate. Sans-IO: time comes with every call."""

from __future__ import annotations

from collections import deque

RATE_SECONDS = 30.0  # window of the average: lines and holders change, and a busy holder answers rarely
SLICE_SECONDS = 0.1  # bytes within this time share one entry, so that there are few
RATE_SECONDS_MIN = 1.0  # a shorter measurement says more about one piece than about the line


class TransferRate:
    """Bytes received recently, in slices of time, oldest first."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, int]] = deque()

    def add(self, count_bytes: int, now: float) -> None:
        """Count useful bytes."""
        if count_bytes <= 0:
            return
        self._forget(now)
        if self._slices and now < self._slices[-1][0] + SLICE_SECONDS:
            begun, before = self._slices.pop()
            self._slices.append((begun, before + count_bytes))
        else:
            self._slices.append((now, count_bytes))

    def rate(self, now: float) -> float | None:
        """Return bytes per second; None while nothing arrives, or too little to tell."""
        self._forget(now)
        if not self._slices:
            return None
        since, first = self._slices[0]
        seconds, came = now - since, sum(count for _, count in self._slices) - first  # the first came before `since`
        return came / seconds if came and seconds >= RATE_SECONDS_MIN else None

    def seconds_left(self, rest_bytes: int, now: float) -> float | None:
        """Return how long `rest_bytes` more take, if known."""
        rate = self.rate(now)
        return None if rate is None else rest_bytes / rate

    def _forget(self, now: float) -> None:
        while self._slices and self._slices[0][0] < now - RATE_SECONDS:
            self._slices.popleft()
