"""What one peer may take of something that all share: so much at once, and so much in a second. Sans-IO."""

from __future__ import annotations

import math


class Allowance:
    """What was taken beyond it is owed, and paid at its rate."""

    def __init__(self, per_second: float, at_once: float) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._left = at_once
        self._counted_at = -math.inf

    def take(self, amount: float, now: float) -> None:
        """So much was taken."""
        self._earn(now)
        self._left -= amount

    def wait_seconds(self, now: float) -> float:
        """How long until more may be taken; 0 for now."""
        self._earn(now)
        return max(0.0, -self._left / self._per_second)

    def _earn(self, now: float) -> None:
        self._left = min(self._left + (now - self._counted_at) * self._per_second, self._at_once)
        self._counted_at = now
