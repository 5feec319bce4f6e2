"""States that others are fetching, kept for a while after we have gone on (design §8). Sans-IO.

Whoever fetches one for longer than a version takes would else never have one whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from peer.outer_optimizer import OuterState

PINNED_MAX = 2  # per fragment
IDLE_SECONDS = 60.0  # as long as a fetcher waits for a holder
PIN_SECONDS_MAX = 7200.0  # whoever asks for ever keeps nothing for ever


@dataclass(slots=True)
class Pin:
    """One state, and when it was asked for first and last."""

    state: OuterState
    since: float
    asked_at: float


class Pins:
    """By fragment and certificate."""

    def __init__(self) -> None:
        self._pins: dict[int, dict[bytes, Pin]] = {}

    def find(self, fragment: int, certificate: bytes) -> OuterState | None:
        """The state of this certificate, if it is kept here."""
        pin = self._pins.get(fragment, {}).get(certificate)
        return None if pin is None else pin.state

    def keep(self, fragment: int, certificate: bytes, state: OuterState, now: float) -> None:
        """Somebody fetches this one now, piece by piece; it is kept unless there are too many."""
        self.expire(now)
        pins = self._pins.setdefault(fragment, {})
        if certificate in pins:
            pins[certificate].asked_at = now
        elif len(pins) < PINNED_MAX:
            pins[certificate] = Pin(state, now, now)

    def expire(self, now: float) -> bool:
        """Let go of what nobody asks for any more; returns whether any are left."""
        for fragment, pins in self._pins.items():
            self._pins[fragment] = {
                certificate: pin
                for certificate, pin in pins.items()
                if now < min(pin.asked_at + IDLE_SECONDS, pin.since + PIN_SECONDS_MAX)
            }
        return any(self._pins.values())
