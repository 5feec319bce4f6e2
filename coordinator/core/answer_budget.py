"""A limit on the bytes of answers per asking peer. Sans-IO.

A question of 50 bytes is answered with up to half a megabyte of certificates, and small messages never wait for the
owner's limit. A peer that asks without end would use up our whole upload. Above the limit it gets no answer, and may
ask again later.
"""

from __future__ import annotations

from dht.allowance import Allowances, StrangersShare
from dht.identity import PeerId

BYTES_PER_SECOND = float(64 << 10)  # a quarter of an upload of 2 Mbit/s
# Per fragment: two pages of certificates of the largest group. When the two sides of a network partition meet again,
# each shows the other a page of every fragment, twice. If these did not pass at once, the sides would ask about the
# first fragments for ever.
FRAGMENT_BYTES_AT_ONCE = 1 << 20
ASKERS_KEPT = 1024


class AnswerBudget:
    """The bytes already sent to each asker; the asker silent longest is forgotten first."""

    def __init__(self, per_second: float = BYTES_PER_SECOND, at_once: float = FRAGMENT_BYTES_AT_ONCE) -> None:
        self._allowances = Allowances(per_second, at_once, ASKERS_KEPT)
        self.strangers = StrangersShare()

    def admits(self, asker: PeerId, now: float) -> bool:
        """Whether to answer this peer now."""
        return self.strangers.admits(asker, now) and not self._allowances.of(asker).wait_seconds(now)

    def gave(self, asker: PeerId, size_bytes: int, now: float) -> None:
        """Count `size_bytes` of answers sent to this asker."""
        self._allowances.of(asker).take(size_bytes, now)
        self.strangers.gave(asker, size_bytes, now)
