"""Where presence is written and read once a swarm is too large for one place of the record store (design §10). Pure.

The places are a binary tree. At depth d there are 2^d of them, and the first d bits of a digest of its id say which is
a peer's own. A peer writes at its depth and at the one above, and reads both in turn: so peers whose depths differ by
one see each other, and nobody is missed while a swarm grows from one depth to the next. The root is everybody's place
while they are few; later the members of active sets stay there, since all need them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from dht.identity import PeerId
from dht.statement import digest_of

ROOT = 0
RECORDS_PER_SHARD = 64  # aimed for at a peer's own depth; the place above has twice that, and 256 is what a place holds
GROWS_AT, SHRINKS_AT = 1.5, 0.6  # times as many, so that a count which wavers changes nothing
DEPTH_MAX = 11
PREFIX_BYTES = 4
SURVEYED_SHARDS = 8  # at a time, by somebody who wants to see everybody


def shard_of(peer: PeerId, depth: int) -> int:
    """A peer's place at this depth."""
    if depth == 0:
        return ROOT
    prefix = int.from_bytes(digest_of(b"muster-shard", peer.encode())[:PREFIX_BYTES], "big")
    return (1 << depth) + (prefix >> (8 * PREFIX_BYTES - depth))


def shards_at(depth: int) -> range:
    """All places at this depth."""
    return range(1 << depth, 2 << depth) if depth else range(ROOT, ROOT + 1)


def depth_for(population: float, depth: int) -> int:
    """The depth that suits so many peers, for one that is at `depth` now."""
    while depth < DEPTH_MAX and population > GROWS_AT * RECORDS_PER_SHARD * 2**depth:
        depth += 1
    while depth and population < SHRINKS_AT * RECORDS_PER_SHARD * 2**depth:
        depth -= 1
    return depth


@dataclass(slots=True)
class PresenceShards:
    """What one peer writes and reads, as it comes to know how many there are."""

    me: PeerId
    depth: int = 0
    population: float = 1.0
    _looks: int = 0
    _counts: dict[int, int] = field(default_factory=dict)  # records in our places, as last read

    def written(self, needed: Collection[PeerId]) -> list[int]:
        """Where our record belongs; `needed`: the active sets."""
        places = {shard_of(self.me, depth) for depth in self._own_depths()}
        return sorted(places | {ROOT} if self.me in needed else places)

    def read(self, missing: Iterable[PeerId], draw: int) -> list[int]:
        """The root, one of our own places, and by `draw` (any number) another one and that of somebody missing."""
        own = self._own_depths()[self._looks % 2]
        self._looks += 1
        shards = shards_at(self.depth)
        places = {ROOT, shard_of(self.me, own), shards[draw % len(shards)]}
        if others := sorted(peer for peer in missing if peer != self.me):
            places.add(shard_of(others[draw % len(others)], self.depth))
        return sorted(places)

    def found(self, counts: Mapping[int, int], said: Mapping[PeerId, int | None], needed: Collection[PeerId]) -> None:
        """Follow what was read: records by place, and the depth that peers say; the active sets `needed` go first."""
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
        """Our depth, as our record says it: nothing where all is in one place."""
        return self.depth or None

    @property
    def everybody(self) -> float:
        """Of how many peers the records that we read are a part; 1 where we read them all."""
        return self.population if self.depth else 1.0

    def _own_depths(self) -> tuple[int, int]:
        return self.depth, max(0, self.depth - 1)


@dataclass(slots=True)
class Survey:
    """Reads every place in turn, for somebody who shows the whole swarm."""

    depth: int = 0
    _left: list[int] = field(default_factory=list)
    _above: bool = False

    def read(self) -> list[int]:
        """The root and the next few: all at the usual depth, then those above, for peers that are not so far yet."""
        if not self._left:
            self._left = list(shards_at(max(0, self.depth - self._above)))
            self._above = not self._above
        now, self._left = self._left[:SURVEYED_SHARDS], self._left[SURVEYED_SHARDS:]
        return sorted({ROOT, *now})

    def found(self, said: Collection[int | None]) -> None:
        """Follow the depth at which most say to be."""
        self.depth = median_low([depth or 0 for depth in said]) if said else self.depth
