"""Presence in a large virtual swarm: a board of places; each peer reads a few (`coordinator.wire.shards`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.wire.presence import Presence
from dht.identity import PeerId
from dht.table import ENTRIES_PER_KEY_MAX

REPLICAS, ACQUAINTANCES = 5, 3  # as in dht.hivemind_store
HOLDERS = REPLICAS + ACQUAINTANCES  # nodes that get a record, besides its writer, and that answer about a place
PUTS_PER_LIFETIME = 3  # puts of one presence record while it lives
ASKED_THE_WAY = 10  # nodes asked for the way before each write or read
# Bytes besides the presence itself, as measured (tests/real/test_thousands.py): key, sender, lifetime, signature.
PUT_OVERHEAD_BYTES, GOT_OVERHEAD_BYTES = 340, 290
QUESTION_BYTES = 46


@dataclass(slots=True)
class Board:
    """The newest presence of every peer, by place, and the traffic of keeping and reading it."""

    lifetime_seconds: float
    records: dict[PeerId, tuple[Presence, float]] = field(default_factory=dict)
    places: dict[int, dict[PeerId, float]] = field(default_factory=dict)  # time of each record, oldest first
    bytes_put: int = 0  # bytes of all records and questions sent
    bytes_got: int = 0
    presence_bytes: int = 0  # size of the last record

    def put(self, peer: PeerId, presence: Presence, places: Sequence[int], now: float) -> None:
        """Publish a record in place of the peer's last one. A full place takes no new peers."""
        self.presence_bytes = len(presence.to_wire())
        self.records[peer] = presence, now
        for place in places:
            held = self.places.setdefault(place, {})
            if held.pop(peer, None) is not None or len(held) < ENTRIES_PER_KEY_MAX:
                held[peer] = now
        record_bytes = self.presence_bytes + PUT_OVERHEAD_BYTES
        self.bytes_put += (record_bytes * HOLDERS + QUESTION_BYTES * ASKED_THE_WAY) * len(places)

    def get(self, places: Sequence[int], now: float) -> dict[int, list[PeerId]]:
        """Return the peers with live records at these places, by place."""
        found = {place: self._live(place, now) for place in places}
        self.bytes_got += sum(map(len, found.values())) * (self.presence_bytes + GOT_OVERHEAD_BYTES) * HOLDERS
        self.bytes_put += QUESTION_BYTES * (ASKED_THE_WAY + HOLDERS) * len(places)
        return found

    def held(self, nodes: int, now: float) -> float:
        """Return how many live records all `nodes` nodes hold together."""
        return keepers(nodes) * sum(len(self._live(place, now)) for place in self.places)

    def _live(self, place: int, now: float) -> list[PeerId]:
        held = self.places.get(place, {})
        while held and now - held[oldest := next(iter(held))] > self.lifetime_seconds:
            del held[oldest]
        return list(held)


def keepers(nodes: int) -> float:
    """Return the expected number of nodes that hold a live record, new or old, of one peer at one place.

    They are its writer, the replicas, the acquaintance that invited it, and others drawn anew for each put.
    """
    others = nodes - 1 - REPLICAS
    if others <= ACQUAINTANCES:
        return nodes
    never_drawn = (1 - (ACQUAINTANCES - 1) / (others - 1)) ** PUTS_PER_LIFETIME
    return 1 + REPLICAS + 1 + (others - 1) * (1 - never_drawn)
