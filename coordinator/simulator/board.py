"""Presence in a large virtual swarm: a shared board of which everybody reads a part, so that no peer stores O(N).

A peer reads the records of those who matter to it, the active sets of its chains, and two shards of the others (design
§10): its own, and another one every time, so that news does not stay within a shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.wire.presence import Presence
from dht.identity import PeerId
from dht.statement import digest_of

RECORDS_PER_SHARD = 64
REPLICAS = 20  # of a record in a Kademlia table
RECORD_OVERHEAD_BYTES = 260  # key, sender, lifetime, signature


@dataclass(slots=True)
class Board:
    """Newest presence of everybody, in shards of about RECORDS_PER_SHARD, and what keeping it costs."""

    peers: int
    records: dict[PeerId, tuple[Presence, float]] = field(default_factory=dict)
    members: dict[int, set[PeerId]] = field(default_factory=dict)
    puts: int = 0
    gets: int = 0
    bytes_put: int = 0
    bytes_got: int = 0
    record_bytes: int = 0  # of one, as last seen

    @property
    def shards(self) -> int:
        """A power of two, so that doubling splits every shard."""
        count = 1
        while self.peers > count * RECORDS_PER_SHARD:
            count *= 2
        return count

    def shard_of(self, peer: PeerId) -> int:
        return int.from_bytes(digest_of(b"muster-shard", peer.encode())[:4], "big") % self.shards

    def put(self, peer: PeerId, presence: Presence, now: float) -> None:
        """Publish a record; it replaces the peer's last one."""
        if peer not in self.records:
            self.members.setdefault(self.shard_of(peer), set()).add(peer)
            self.record_bytes = len(presence.to_wire()) + RECORD_OVERHEAD_BYTES
        self.records[peer] = (presence, now)
        self.puts += 1
        self.bytes_put += self.record_bytes

    def get(self, reader: PeerId, needed: Iterable[PeerId], other: int, now: float, lifetime: float) -> list[PeerId]:
        """Whose live records this reader sees: of those that it needs, of its own shard and of the shard `other`."""
        wanted = {*needed, *self.members.get(self.shard_of(reader), ()), *self.members.get(other, ())} - {reader}
        found = [peer for peer in sorted(wanted) if self._is_live(peer, now, lifetime)]
        self.gets += 3
        self.bytes_got += len(found) * self.record_bytes
        return found

    def _is_live(self, peer: PeerId, now: float, lifetime: float) -> bool:
        known = self.records.get(peer)
        return known is not None and now - known[1] <= lifetime
