"""Places for the presence of a swarm that is too large for one place of the record store (design §10). Pure.

The places form a binary tree with 2^d places at depth d. The first d bits of a digest of a peer's id select its own
place. A peer writes at its depth and at the one above, and reads both in turn. So peers whose depths differ by one see
each other, and none is missed while a swarm grows from one depth to the next. All peers use the root while they are
few. Later the members of active sets stay there, since all peers need them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from dht.identity import PeerId
from dht.statement import digest_of

ROOT = 0
RECORDS_PER_SHARD = 64  # the aim at a peer's own depth; the place above has twice that, and a place holds 256
GROWS_AT, SHRINKS_AT = 1.5, 0.6  # times as many: a count that wavers changes nothing
DEPTH_MAX = 11
PREFIX_BYTES = 4
SURVEYED_SHARDS = 8  # at a time, by an observer of the whole swarm


def shard_of(peer: PeerId, depth: int) -> int:
    """Return a peer's place at this depth."""
    if depth == 0:
        return ROOT
    prefix = int.from_bytes(digest_of(b"muster-shard", peer.encode())[:PREFIX_BYTES], "big")
    return (1 << depth) + (prefix >> (8 * PREFIX_BYTES - depth))


def shards_at(depth: int) -> range:
    """Return all places at this depth."""
    return range(1 << depth, 2 << depth) if depth else range(ROOT, ROOT + 1)


def depth_for(population: float, depth: int) -> int:
    """Return the depth that suits so many peers, for a peer that is at `depth` now."""
    while depth < DEPTH_MAX and population > GROWS_AT * RECORDS_PER_SHARD * 2**depth:
        depth += 1
    while depth and population < SHRINKS_AT * RECORDS_PER_SHARD * 2**depth:
        depth -= 1
    return depth


@dataclass(slots=True)
class PresenceShards:
    """The places that one peer writes and reads, adapted to the number of peers that it sees."""

    me: PeerId
    depth: int = 0
    population: float = 1.0
    _looks: int = 0
    _counts: dict[int, int] = field(default_factory=dict)  # records in our places, as last read

    def written(self, needed: Collection[PeerId]) -> list[int]:
        """Return the places for our record; `needed` are the members of the active sets."""
        places = {shard_of(self.me, depth) for depth in self._own_depths()}
        return sorted(places | {ROOT} if self.me in needed else places)

    def read(self, missing: Iterable[PeerId], draw: int) -> list[int]:
        """Return places to read: the root, one of our own, and by `draw` (any number) any one and a missing peer's."""
        own = self._own_depths()[self._looks % 2]
        self._looks += 1
        shards = shards_at(self.depth)
        places = {ROOT, shard_of(self.me, own), shards[draw % len(shards)]}
        if others := sorted(peer for peer in missing if peer != self.me):
            places.add(shard_of(others[draw % len(others)], self.depth))
        return sorted(places)

    def found(self, counts: Mapping[int, int], said: Mapping[PeerId, int | None], needed: Collection[PeerId]) -> None:
        """Adapt the depth to the records read: `counts` by place, and the depths that peers `said`.

        If peers of the active sets (`needed`) said a depth, only theirs count.
        """
        own = {shard_of(self.me, depth): 2**depth for depth in self._own_depths()}
        self._counts = {place: counts.get(place, self._counts.get(place, 0)) for place in own}
        self.population = max(1.0, *(count * own[place] for place, count in self._counts.items()))
        suits = depth_for(self.population, self.depth)
        believed = [depth or 0 for peer, depth in said.items() if peer in needed]
        depths = believed or [depth or 0 for depth in said.values()]
        usual = median_low(depths) if depths else suits
        self.depth = min(max(suits, usual - 1), usual + 1)  # further apart we would not see each other
        self.population = max(self.population, RECORDS_PER_SHARD * 2 ** (self.depth - 1) if self.depth else 1.0)

    @property
    def said(self) -> int | None:
        """Our depth as our record states it; None while there is only one place."""
        return self.depth or None

    @property
    def everybody(self) -> float:
        """Estimated number of peers, of which we read only a part; 1 if we read the records of all."""
        return self.population if self.depth else 1.0

    def _own_depths(self) -> tuple[int, int]:
        return self.depth, max(0, self.depth - 1)


@dataclass(slots=True)
class Survey:
    """Reads every place in turn, for an observer that shows the whole swarm."""

    depth: int = 0
    _left: list[int] = field(default_factory=list)
    _above: bool = False

    def read(self) -> list[int]:
        """Return the root and the next few: all at the usual depth, then those above, for peers that are behind."""
        if not self._left:
            self._left = list(shards_at(max(0, self.depth - self._above)))
            self._above = not self._above
        now, self._left = self._left[:SURVEYED_SHARDS], self._left[SURVEYED_SHARDS:]
        return sorted({ROOT, *now})

    def found(self, said: Collection[int | None]) -> None:
        """Adopt the median of the depths that peers said."""
        self.depth = median_low([depth or 0 for depth in said]) if said else self.depth
