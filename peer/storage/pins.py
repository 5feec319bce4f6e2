"""Decides which older state a peer keeps for a downloading peer while it goes on itself (design §8). Sans-IO.

Otherwise a peer whose download takes longer than a few versions would never get a whole state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dht.identity import PeerId

ASKERS_MAX = 64

IDLE_SECONDS = 60.0  # as long as a downloading peer waits for a holder
PIN_SECONDS_MAX = 7200.0  # after this, the first peer to ask for another state gets its turn; asking again is no help


@dataclass(slots=True)
class Pin:
    """A state by its certificate, the peers that ask for it, and the times of the first and the last request."""

    certificate: bytes
    askers: set[PeerId]  # bounded as the queue of a donor; peers that finish say so, peers that vanish do not
    since: float
    asked_at: float


class Pins:
    """The pinned states, at most one per fragment, each until nobody has asked for it for a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pins: dict[int, Pin] = {}

    def find(self, fragment: int) -> bytes | None:
        """Return the certificate of the pinned state."""
        pin = self._current(fragment)
        return None if pin is None else pin.certificate

    def keep(self, fragment: int, certificate: bytes, asker: PeerId) -> None:
        """Pin this state, because its pieces are being downloaded, unless another peer downloads another state."""
        pin, now = self._current(fragment), self._clock()
        if pin is None:
            self._pins[fragment] = Pin(certificate, {asker}, now, now)
        elif pin.certificate == certificate:
            pin.asked_at = now
            if len(pin.askers) < ASKERS_MAX:
                pin.askers.add(asker)
        elif pin.askers == {asker}:  # its turn continues: changing from one state to another does not extend it
            self._pins[fragment] = Pin(certificate, {asker}, pin.since, now)
        elif now >= pin.since + PIN_SECONDS_MAX:
            self._pins[fragment] = Pin(certificate, {asker}, now, now)
        else:
            pin.askers.discard(asker)

    def release(self, fragment: int, asker: PeerId) -> None:
        """Release the pin of this peer, which has what it needs."""
        pin = self._pins.get(fragment)
        if pin is not None and asker in pin.askers:
            pin.askers.remove(asker)
            if not pin.askers:
                del self._pins[fragment]

    def _current(self, fragment: int) -> Pin | None:
        """Return the pin of this fragment, unless it has ended: a peer that finishes tells only one of its holders."""
        pin = self._pins.get(fragment)
        if pin is not None and self._clock() >= pin.asked_at + IDLE_SECONDS:
            del self._pins[fragment]
            return None
        return pin
