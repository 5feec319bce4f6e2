"""Schedules a donor's answers, so that no asker delays another one, nor the donor's own training. Sans-IO.

Requests wait in one short queue per asker. The queues take turns, and share a fixed rate.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

from dht.identity import PeerId
from peer.net.frames import StateAsk
from peer.storage.pins import ASKERS_MAX

GIVEN_BYTES_PER_SECOND = 16 << 20
BURST_BYTES = 4 << 20  # sent at once after a rest
WAIT_SECONDS_MIN = 0.01
ASKS_PER_ASKER_MAX = 16  # twice the requests of an honest asker in flight


class UploadScheduler:
    """The queues of the askers, and the bytes that may be sent now."""

    def __init__(self, bytes_per_second: float = GIVEN_BYTES_PER_SECOND) -> None:
        self.bytes_per_second = bytes_per_second
        self._allowance_bytes = float(BURST_BYTES)
        self._counted_at = -math.inf
        self._lines: OrderedDict[PeerId, deque[StateAsk]] = OrderedDict()  # the next in turn comes first

    def ask(self, peer: PeerId, ask: StateAsk) -> None:
        """Queue a request; one too many is dropped, and its asker will turn to another holder.

        A request for another state of a fragment replaces those for the one before. A repeated request of an impatient
        asker is not answered twice.
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
        """Drop the queue of a peer that is gone."""
        self._lines.pop(peer, None)

    def next(self, now: float) -> tuple[PeerId, StateAsk] | None:
        """Return the request to answer now; None if there is none, or the rate does not allow one yet."""
        self._earn(now)
        if not self._lines or self._allowance_bytes < 0:
            return None
        peer, line = self._lines.popitem(last=False)
        ask = line.popleft()
        if line:
            self._lines[peer] = line
        return peer, ask

    def gave(self, payload_bytes: int) -> None:
        """Count the bytes sent for the last request."""
        self._allowance_bytes -= payload_bytes

    def wait_seconds(self) -> float | None:
        """Return the time until `next` has a request; None without any."""
        return None if not self._lines else max(-self._allowance_bytes / self.bytes_per_second, WAIT_SECONDS_MIN)

    def _earn(self, now: float) -> None:
        earned = (now - self._counted_at) * self.bytes_per_second
        self._counted_at = now
        self._allowance_bytes = min(self._allowance_bytes + earned, float(BURST_BYTES))
