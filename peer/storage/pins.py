"""Which older state a peer keeps for somebody who is fetching it, while it goes on itself (design §8). Sans-IO.

A peer that fetches one for longer than the others take for a few versions would else never have one whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from dht.identity import PeerId

ASKERS_MAX = 64

IDLE_SECONDS = 60.0  # as long as a fetcher waits for a holder
PIN_SECONDS_MAX = 7200.0  # then the first that asks for another state gets its turn; asking again renews nothing


@dataclass(slots=True)
class Pin:
    """A state by its certificate, who asks for it, and when it was asked for first and last."""

    certificate: bytes
    askers: set[PeerId]  # no more than have a line at a donor; who goes on says so, who vanishes does not
    since: float
    asked_at: float


class Pins:
    """At most one per fragment."""

    def __init__(self) -> None:
        self._pins: dict[int, Pin] = {}

    def find(self, fragment: int) -> bytes | None:
        """The certificate of the state that is kept."""
        pin = self._pins.get(fragment)
        return None if pin is None else pin.certificate

    def keep(self, fragment: int, certificate: bytes, asker: PeerId, now: float) -> None:
        """This one is fetched now, piece by piece; it is kept unless somebody else fetches another one."""
        pin = self._pins.get(fragment)
        if pin is None or now >= pin.asked_at + IDLE_SECONDS:
            self._pins[fragment] = Pin(certificate, {asker}, now, now)
        elif pin.certificate == certificate:
            pin.asked_at = now
            if len(pin.askers) < ASKERS_MAX:
                pin.askers.add(asker)
        elif pin.askers == {asker}:  # its turn goes on: to go from one state to another makes it no longer
            self._pins[fragment] = Pin(certificate, {asker}, pin.since, now)
        elif now >= pin.since + PIN_SECONDS_MAX:
            self._pins[fragment] = Pin(certificate, {asker}, now, now)
        else:
            pin.askers.discard(asker)

    def release(self, fragment: int, asker: PeerId) -> None:
        """This peer goes on from what it has fetched."""
        pin = self._pins.get(fragment)
        if pin is not None and asker in pin.askers:
            pin.askers.remove(asker)
            if not pin.askers:
                del self._pins[fragment]
