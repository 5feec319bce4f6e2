"""Presence: which peers say that they are here, and how fast they are (design §6.1).

It helps to find peers and to time things, and never decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from coordinator.wire.messages import Nonce
from coordinator.wire.shards import DEPTH_MAX
from dht.identity import PeerId
from dht.records import RECORD_KINDS
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR, Wire

PEERS_KNOWN_MAX = 4096
ADDRESSES_MAX = 8
ADDRESS_CHARACTERS_MAX = 256
HEAD_BYTES = 8  # of a version's digest, in a presence record
NAME_CHARACTERS_MAX = 32
DEVICE_CHARACTERS_MAX = 64
SOFTWARE_CHARACTERS_MAX = 32
PRESENCE_BYTES_MAX = RECORD_KINDS["presence"].payload_bytes_max
COMPLETE_SHARE = 2 / 3  # of a lifetime, which is the time of three records (`PaceSpec.presence_lifetime_seconds`)
FORGET_LIFETIMES = 20.0  # of silence, after which a peer makes room for others

State = Literal["starting", "training", "catching up", "paused", "draining", "hosting"]


class Presence(Wire):
    """A peer's report on itself every few seconds; the record that carries it is signed."""

    OMITS_NONE: ClassVar[bool] = True

    protocol_major: int = PROTOCOL_MAJOR
    protocol_minor: int = PROTOCOL_MINOR
    boot: Nonce
    state: State
    steps: int = Field(ge=0)
    steps_per_second: float = Field(ge=0, le=1e6)
    tokens: int = Field(ge=0)
    loss: float | None = Field(None, ge=0)
    versions: tuple[int, ...] = Field(max_length=256)
    heads: tuple[Annotated[bytes, Field(max_length=HEAD_BYTES)], ...] = Field(max_length=256)
    addresses: tuple[Annotated[str, Field(max_length=ADDRESS_CHARACTERS_MAX)], ...] = Field(max_length=ADDRESSES_MAX)
    dialable: bool = True
    software: str = Field("", max_length=SOFTWARE_CHARACTERS_MAX)
    beat: int = Field(0, ge=0)  # another number every time, so that a resting peer's record differs from its last one
    # claims for people only; nothing is decided by them
    name: str = Field("", max_length=NAME_CHARACTERS_MAX)
    device: str = Field("", max_length=DEVICE_CHARACTERS_MAX)
    bytes_sent: int = Field(0, ge=0)
    bytes_received: int = Field(0, ge=0)
    rounds_void: int = Field(0, ge=0)  # rounds of its own since it started
    team: str = Field("", max_length=NAME_CHARACTERS_MAX)  # for people, and only a claim
    shard_depth: int | None = Field(None, ge=1, le=DEPTH_MAX)  # None: only one place (coordinator.wire.shards)

    def fitting(self) -> Presence:
        """Shorten this presence to fit a record: fields for people are dropped first, then addresses, then heads."""
        fitting = self
        shorter = (("device", ""), ("team", ""), ("name", ""), ("addresses", self.addresses[:1]), ("heads", ()))
        for field_name, value in shorter:
            if len(fitting.to_wire()) <= PRESENCE_BYTES_MAX:
                break
            fitting = fitting.model_copy(update={field_name: value})
        return fitting


@dataclass(slots=True)
class Sighting:
    """A peer's newest presence, when it reached us, and since when the peer has been live (our monotonic clock)."""

    presence: Presence
    seen_seconds: float
    since_seconds: float
    counted: bool = False  # included in the number of training peers


@dataclass(slots=True)
class PresenceTable:
    """The peers that we believe to be there. Bounded; forgets peers that were silent for many lifetimes."""

    lifetime_seconds: float
    sightings: dict[PeerId, Sighting] = field(default_factory=dict)
    gone: set[PeerId] = field(default_factory=set)  # of `sightings`: lost by the transport
    unheard: set[PeerId] = field(default_factory=set)  # of `sightings`: sent us nothing in a group, nor since
    spoken: set[PeerId] = field(default_factory=set)  # of `sightings`: sent us a message, not only records
    shunned: set[PeerId] = field(default_factory=set)  # banned: they are not live for us
    sampled_share: float = 1.0  # of all peers, those whose records we read; fewer in large swarms (design §10)
    revision: int = 0  # grows with every change, so that results computed from the table know when they are stale

    _population: tuple[tuple[int, int], int] | None = field(init=False, default=None)
    # training peers are counted with every change, since their number is asked for after each of many records
    _training: int = field(init=False, default=0)
    _oldest_seconds: float = field(init=False, default=math.inf)  # no counted peer was last seen before this

    def see(self, peer: PeerId, presence: Presence, now: float) -> None:
        """Take up a presence record, unless it is the one that we know or there is no room."""
        known = self.sightings.get(peer)
        if known is None:
            if not self._has_room(now):
                return
            known = self.sightings[peer] = Sighting(presence, now, now)
        elif known.presence is presence or (known.presence.beat == presence.beat and known.presence == presence):
            return  # the same record read again says nothing about now
        else:
            if known.presence.boot != presence.boot:
                self.unheard.discard(peer)  # it restarted, and has had no occasion to send anything yet
            if not self._is_live(peer, known, now):
                known.since_seconds = now
            known.presence, known.seen_seconds = presence, now
        self.revision += 1
        self.gone.discard(peer)
        self._count(peer, known)

    def _has_room(self, now: float) -> bool:
        if len(self.sightings) >= PEERS_KNOWN_MAX:
            self.forget(now)
        return len(self.sightings) < PEERS_KNOWN_MAX

    def heard(self, peer: PeerId) -> None:
        """Record a message from a peer: any message shows that the transport reaches it."""
        self.unheard.discard(peer)
        if peer in self.sightings:
            self.spoken.add(peer)
        if peer in self.gone:
            self.gone.discard(peer)
            self.revision += 1
            self._count_again(peer)

    def miss(self, peers: Set[PeerId]) -> None:
        """Record peers that sent us nothing in a group that is over; we do not wait for them until they do.

        They may be well and reach others. So they stay live, and take part wherever they send something.
        """
        self.unheard = (self.unheard | peers) & self.sightings.keys()

    def lose(self, peer: PeerId) -> None:
        """Record that the transport lost a peer."""
        if peer in self.sightings:
            self.revision += 1
            self.gone.add(peer)
            self._count_again(peer)

    def shun(self, peer: PeerId) -> None:
        """Treat a peer as not live from now on, whatever it sends."""
        self.revision += 1
        self.shunned.add(peer)
        self._count_again(peer)

    def readmit(self, peer: PeerId) -> None:
        """Let a shunned peer be live for us again."""
        self.revision += 1
        self.shunned.discard(peer)
        self._count_again(peer)

    def is_live(self, peer: PeerId, now: float) -> bool:
        """Whether a peer was seen within a lifetime, not lost by the transport since, and is not banned."""
        sighting = self.sightings.get(peer)
        return sighting is not None and self._is_live(peer, sighting, now)

    def _is_live(self, peer: PeerId, sighting: Sighting, now: float) -> bool:
        lost = peer in self.gone or peer in self.shunned
        return not lost and sighting.seen_seconds >= self._counted_from(now)

    def live(self, now: float) -> frozenset[PeerId]:
        """Return all live peers."""
        earliest = self._counted_from(now)
        seen = frozenset([peer for peer, one in self.sightings.items() if one.seen_seconds >= earliest])
        lost = self.gone | self.shunned
        return seen - lost if lost else seen

    def _counted_from(self, now: float) -> float:
        """Return the time since which a peer must have been seen to be live."""
        return now - self.lifetime_seconds

    def met_at(self, peers: Set[PeerId], now: float) -> float:
        """Return since when the longest live of these peers has been live; now if none is."""
        return min((self.sightings[peer].since_seconds for peer in self.live(now) & peers), default=now)

    def is_complete(self, known: Set[PeerId], now: float) -> bool:
        """Whether one of `known`, or any peer if none of them is live, has been live for the time of two records.

        By then we have heard of every peer that is there.
        """
        live = self.live(now)
        return now - self.met_at(live & known or live, now) >= COMPLETE_SHARE * self.lifetime_seconds

    def is_training(self, peer: PeerId, now: float) -> bool:
        """Whether a peer is live and its learner is running."""
        return self.is_live(peer, now) and self.sightings[peer].presence.state == "training"

    def is_dialable(self, peer: PeerId) -> bool:
        """Whether a peer says that others can dial it; True for a peer we know nothing of."""
        sighting = self.sightings.get(peer)
        return sighting is None or sighting.presence.dialable

    def trainers(self, now: float) -> frozenset[PeerId]:
        """Return the live peers whose learners are running."""
        self._expire(now)
        return frozenset([peer for peer, one in self.sightings.items() if one.counted])

    def heard_trainers(self, now: float) -> frozenset[PeerId]:
        """Return the trainers that have not been silent towards us."""
        return self.trainers(now) - self.unheard

    def sample(self, everybody: float, now: float) -> None:
        """Set the share of the swarm whose records we read: our live peers out of `everybody`."""
        self.sampled_share = min(1.0, max(len(self.live(now)), 1) / everybody)

    def population(self, now: float) -> float:
        """Return how many peers train, judged by what we see; counted anew only when that may have changed.

        If we see only a part of the swarm, this is an estimate, and one a second is enough.
        """
        basis = (self.revision if self.sampled_share == 1.0 else 0, int(now))
        if self._population is None or self._population[0] != basis:
            self._expire(now)
            self._population = (basis, self._training)
        return self._population[1] / self.sampled_share

    def step_seconds(self, peers: Set[PeerId]) -> float:
        """Return the seconds per inner step of the slowest of these peers, 0 if none says its rate.

        A contribution ends with a whole step.
        """
        rates = [self.sightings[peer].presence.steps_per_second for peer in peers & self.sightings.keys()]
        return max((1 / rate for rate in rates if rate > 0), default=0.0)

    def reports_head(self, peer: PeerId, fragment: int, digest: bytes) -> bool:
        """Whether a peer says that this version is its newest one."""
        sighting = self.sightings.get(peer)
        heads = () if sighting is None else sighting.presence.heads
        return fragment < len(heads) and heads[fragment] == digest[:HEAD_BYTES]

    def forget(self, now: float, lifetimes: float = FORGET_LIFETIMES) -> None:
        """Forget peers that have been silent for more than so many lifetimes."""
        limit = lifetimes * self.lifetime_seconds
        for peer in [peer for peer, sighting in self.sightings.items() if now - sighting.seen_seconds > limit]:
            self._training -= self.sightings.pop(peer).counted
            for noted in (self.gone, self.unheard, self.spoken):
                noted.discard(peer)

    def _count_again(self, peer: PeerId) -> None:
        known = self.sightings.get(peer)
        if known is not None:
            self._count(peer, known)

    def _count(self, peer: PeerId, known: Sighting) -> None:
        """Count a peer if it trains and is neither gone nor shunned; `_expire` ends that."""
        trains = known.presence.state == "training" and peer not in self.gone and peer not in self.shunned
        if trains and known.seen_seconds < self._oldest_seconds:
            self._oldest_seconds = known.seen_seconds
        if trains != known.counted:
            self._training += trains - known.counted
            known.counted = trains

    def _expire(self, now: float) -> None:
        """Stop counting peers that are no longer live; looks at all of them only if one may be affected."""
        earliest = self._counted_from(now)
        if self._oldest_seconds >= earliest:
            return
        self._training, self._oldest_seconds = 0, math.inf
        for one in self.sightings.values():
            one.counted = one.counted and one.seen_seconds >= earliest
            if one.counted:
                self._training += 1
                self._oldest_seconds = min(self._oldest_seconds, one.seen_seconds)
