"""Presence: who says that they are here, and how fast. Helps to find and to time things, never decides (design §6.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from coordinator.messages import Nonce
from dht.identity import PeerId
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR, Wire

PEERS_KNOWN_MAX = 4096
ADDRESSES_MAX = 8

State = Literal["starting", "training", "catching up", "paused", "draining", "hosting"]


class Presence(Wire):
    """What a peer says of itself every few seconds; signed by the record that carries it."""

    protocol_major: int = PROTOCOL_MAJOR
    protocol_minor: int = PROTOCOL_MINOR
    boot: Nonce
    state: State
    steps: int = Field(ge=0)
    steps_per_second: float = Field(ge=0, le=1e6)
    tokens: int = Field(ge=0)
    loss: float | None = Field(None, ge=0)
    versions: tuple[int, ...] = Field(max_length=256)
    heads: tuple[Annotated[bytes, Field(max_length=8)], ...] = Field(max_length=256)
    addresses: tuple[Annotated[str, Field(max_length=256)], ...] = Field(max_length=ADDRESSES_MAX)
    dialable: bool = True
    software: str = Field("", max_length=32)


@dataclass(slots=True)
class Sighting:
    """The newest presence of a peer and when it reached us (our monotonic clock)."""

    presence: Presence
    seen_seconds: float
    first_seen_seconds: float


@dataclass(slots=True)
class PresenceTable:
    """Whom we believe to be there. Bounded; forgets whoever has been silent for a lifetime."""

    lifetime_seconds: float
    sightings: dict[PeerId, Sighting] = field(default_factory=dict)
    gone: set[PeerId] = field(default_factory=set)
    revision: int = 0  # grows with every change, so that whoever computes from the table knows when to do it again

    def see(self, peer: PeerId, presence: Presence, now: float) -> None:
        known = self.sightings.get(peer)
        if known is not None and known.presence == presence:
            return  # the same record read again says nothing about now
        if known is None and len(self.sightings) >= PEERS_KNOWN_MAX:
            return
        self.revision += 1
        self.sightings[peer] = Sighting(presence, now, now if known is None else known.first_seen_seconds)
        self.gone.discard(peer)

    def heard(self, peer: PeerId) -> None:
        """Any message from a peer shows that the transport reaches it."""
        if peer in self.gone:
            self.gone.discard(peer)
            self.revision += 1

    def lose(self, peer: PeerId) -> None:
        self.revision += 1
        self.gone.add(peer)

    def is_live(self, peer: PeerId, now: float) -> bool:
        sighting = self.sightings.get(peer)
        return sighting is not None and peer not in self.gone and now - sighting.seen_seconds <= self.lifetime_seconds

    def live(self, now: float) -> frozenset[PeerId]:
        """Everyone seen within a lifetime and not lost by the transport."""
        return frozenset(peer for peer in self.sightings if self.is_live(peer, now))

    def trainers(self, now: float) -> frozenset[PeerId]:
        """Live peers whose learners are running."""
        return frozenset(peer for peer in self.live(now) if self.sightings[peer].presence.state == "training")

    def steps(self, peer: PeerId, now: float) -> float | None:
        """A peer's inner steps so far, extrapolated by its rate; None if it was never seen."""
        sighting = self.sightings.get(peer)
        if sighting is None:
            return None
        return sighting.presence.steps + sighting.presence.steps_per_second * (now - sighting.seen_seconds)

    def steps_per_second(self, peer: PeerId) -> float | None:
        sighting = self.sightings.get(peer)
        return None if sighting is None else sighting.presence.steps_per_second

    def forget_silent(self, now: float, after_lifetimes: float = 20.0) -> None:
        """Drop peers that have been silent for many lifetimes."""
        limit = self.lifetime_seconds * after_lifetimes
        for peer in [peer for peer, sighting in self.sightings.items() if now - sighting.seen_seconds > limit]:
            del self.sightings[peer]
            self.gone.discard(peer)
