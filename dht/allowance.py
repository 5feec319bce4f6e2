"""Token buckets that limit each peer's use of a shared resource: a burst and a rate per second. Sans-IO."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable

from dht.units import DAY_SECONDS

CLOCK_EPSILON_SECONDS = 1e-6  # a shorter wait counts as none


class Allowance:
    """A token bucket that can be overdrawn; the debt is paid off at its rate. An infinite rate limits nothing."""

    def __init__(self, per_second: float, at_once: float) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._left = at_once
        self._counted_at = -math.inf

    def take(self, amount: float, now: float) -> None:
        """Deduct an amount, even if more is taken than was left."""
        if math.isfinite(self._per_second):
            self._earn(now)
            self._left -= amount

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until more may be taken; 0 if it may be taken now."""
        if not math.isfinite(self._per_second):
            return 0.0
        self._earn(now)
        wait_seconds = -self._left / self._per_second
        return wait_seconds if wait_seconds > CLOCK_EPSILON_SECONDS else 0.0

    def _earn(self, now: float) -> None:
        self._left = min(self._left + (now - self._counted_at) * self._per_second, self._at_once)
        self._counted_at = now


class Allowances:
    """One allowance per taker. Beyond `kept` of them, the taker that was silent longest is forgotten."""

    def __init__(self, per_second: float, at_once: float, kept: int) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._kept = kept
        self._found: OrderedDict[Hashable, Allowance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def of(self, taker: Hashable) -> Allowance:
        """Return a taker's allowance, a full one if it has taken nothing yet."""
        found = self._found.get(taker)
        if found is None:
            found = self._found[taker] = Allowance(self._per_second, self._at_once)
        self._found.move_to_end(taker)
        while len(self._found) > self._kept:
            self._found.popitem(last=False)
        return found


class CallerLimits:
    """Rate limits on answers: so many per second for each asker, and for all of them together."""

    def __init__(self, each_per_second: float, each_at_once: float, all_per_second: float, kept: int) -> None:
        self._each = Allowances(each_per_second, each_at_once - 1.0, kept)  # the last may be overdrawn
        self._all = Allowance(all_per_second, all_per_second - 1.0)

    def __len__(self) -> int:
        """Return the number of askers that are remembered."""
        return len(self._each)

    def take(self, asker: Hashable, now: float) -> bool:
        """Return whether this asker is answered now; if so, count one of its turns."""
        own = self._each.of(asker)
        if own.wait_seconds(now) or self._all.wait_seconds(now):
            return False
        own.take(1.0, now)
        self._all.take(1.0, now)
        return True


class StrangersShare:
    """The part of our upload that all strangers share; while it is `closed`, no peer gets anything.

    Keys cost nothing, so a limit per key limits nobody. Peers that `is_member` knows take none of this share. Peers
    that are shut out (`is_shut_out`) get nothing and may store nothing.
    """

    def __init__(self, per_second: float = math.inf, at_once: float = math.inf) -> None:
        self._at_once = Allowance(per_second, at_once)
        self._of_day = Allowance(math.inf, 0.0)
        self.is_member: Callable[[str], bool] = lambda _: False
        self.is_shut_out: Callable[[str], bool] = lambda _: False
        self.closed = False

    def give_of_day(self, amount: float) -> None:
        """Set the amount that may be given at once and is refilled over a day."""
        self._of_day = Allowance(amount / DAY_SECONDS, amount)

    def admits(self, asker: str, now: float) -> bool:
        """Whether this asker may be given something now."""
        if self.closed or self.is_shut_out(asker):
            return False
        if self.is_member(asker):
            return True
        return not (self._at_once.wait_seconds(now) or self._of_day.wait_seconds(now))

    def gave(self, asker: str, amount: float, now: float) -> None:
        """Count an amount given to this asker, unless it is a member."""
        if not self.is_member(asker):
            self._at_once.take(amount, now)
            self._of_day.take(amount, now)


class Answers:
    """The bytes sent in answer to others' calls outside the transport; those to strangers come off their share."""

    def __init__(self) -> None:
        self.strangers = StrangersShare()
        self.sent_bytes = 0

    def gave(self, asker: str, size_bytes: int, now: float) -> None:
        """Count the bytes of an answer to this asker."""
        self.strangers.gave(asker, size_bytes, now)
        self.sent_bytes += size_bytes
