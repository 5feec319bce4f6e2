"""How many bytes of answers one peer may have from us, whatever it asks. Sans-IO.

A question of 50 bytes is answered with up to half a megabyte of certificates, and small messages never wait for the
owner's limit: an asker without end would have our whole upload. Who asks too much gets no answer, and asks again.
"""

from __future__ import annotations

from dht.allowance import Allowances, StrangersShare
from dht.identity import PeerId

BYTES_PER_SECOND = float(64 << 10)  # a quarter of an upload of 2 Mbit/s
# Of each fragment: two pages of certificates of the largest group. Sides of a partition that meet again show each other
# a page of every fragment, twice; if that did not pass at once, they would ask about the first fragments for ever.
FRAGMENT_BYTES_AT_ONCE = 1 << 20
ASKERS_KEPT = 1024


class AnswerBudget:
    """What each asker has had; the one silent longest is forgotten."""

    def __init__(self, per_second: float = BYTES_PER_SECOND, at_once: float = FRAGMENT_BYTES_AT_ONCE) -> None:
        self._allowances = Allowances(per_second, at_once, ASKERS_KEPT)
        self.strangers = StrangersShare()

    def admits(self, asker: PeerId, now: float) -> bool:
        """Whether to answer this peer now."""
        return self.strangers.admits(asker, now) and not self._allowances.of(asker).wait_seconds(now)

    def gave(self, asker: PeerId, size_bytes: int, now: float) -> None:
        """So much went to it in answer."""
        self._allowances.of(asker).take(size_bytes, now)
        self.strangers.gave(asker, size_bytes, now)
