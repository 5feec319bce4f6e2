"""When a donor answers for its states: no asker delays another one, nor the donor's own training. Sans-IO.

Questions wait in one short line per asker; the lines take turns, and all together get no more than a fixed rate.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

from dht.identity import PeerId
from peer.net.frames import StateAsk
from peer.storage.pins import ASKERS_MAX

GIVEN_BYTES_PER_SECOND = 16 << 20
BURST_BYTES = 4 << 20  # given at once after a rest
WAIT_SECONDS_MIN = 0.01
ASKS_PER_ASKER_MAX = 16  # twice what an honest asker has in flight


class UploadScheduler:
    """The lines of askers, and how much may be given now."""

    def __init__(self, bytes_per_second: float = GIVEN_BYTES_PER_SECOND) -> None:
        self.bytes_per_second = bytes_per_second
        self._allowance_bytes = float(BURST_BYTES)
        self._counted_at = -math.inf
        self._lines: OrderedDict[PeerId, deque[StateAsk]] = OrderedDict()  # whose turn it is comes first

    def ask(self, peer: PeerId, ask: StateAsk) -> None:
        """Queue a question; one too many is dropped, and its asker will turn to somebody else.

        An asker for another state of a fragment does not want the one before any more; and nothing is given twice
        to an asker that has lost patience and asks again.
        """
        line = self._lines.get(peer)
        if line is None:
            if len(self._lines) >= ASKERS_MAX:
                return
            line = self._lines[peer] = deque()
        for other in [one for one in line if one.fragment == ask.fragment and one.certificate != ask.certificate]:
            line.remove(other)
        if len(line) < ASKS_PER_ASKER_MAX and ask not in line:
            line.append(ask)

    def forget(self, peer: PeerId) -> None:
        """A peer that is gone waits for nothing, and takes nobody's turn."""
        self._lines.pop(peer, None)

    def next(self, now: float) -> tuple[PeerId, StateAsk] | None:
        """The question to answer now; None if there is none, or nothing may be given yet."""
        self._earn(now)
        if not self._lines or self._allowance_bytes < 0:
            return None
        peer, line = self._lines.popitem(last=False)
        ask = line.popleft()
        if line:
            self._lines[peer] = line
        return peer, ask

    def gave(self, payload_bytes: int) -> None:
        """So much went out for the last question."""
        self._allowance_bytes -= payload_bytes

    def wait_seconds(self) -> float | None:
        """How long until `next` has something; None while nobody waits."""
        return None if not self._lines else max(-self._allowance_bytes / self.bytes_per_second, WAIT_SECONDS_MIN)

    def _earn(self, now: float) -> None:
        earned = (now - self._counted_at) * self.bytes_per_second
        self._counted_at = now
        self._allowance_bytes = min(self._allowance_bytes + earned, float(BURST_BYTES))
