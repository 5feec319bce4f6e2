"""Thousands of signed identities find each other through real nodes of the DHT, while a tenth change per minute.

Time passes by hand, so nothing here depends on the speed of this machine. The bytes are compared with the simulator's
count for the same peers (`coordinator.simulator.scale`).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import pytest

from coordinator.simulator.board import ACQUAINTANCES, REPLICAS, Board
from coordinator.wire.shards import DEPTH_MAX, shard_of
from dht import hivemind_store
from dht.hivemind_store import HivemindStore
from dht.identity import Identity, KeyVerifier, PeerId
from dht.statement import digest_of
from dht.table import ENTRIES_PER_KEY_MAX
from dht.validation import RecordRules
from tests.dht.conftest import short_folder as short_folder
from tests.dht.eclipse import Nodes, address_of
from tests.real.crowd import LIFETIME_SECONDS, HandClock, House, Tenant, needs, no_deadline

RUN_ID = digest_of(b"thousands")
NODES, PEERS, ACTIVE = 16, 2000, 44
INTERVAL_SECONDS = 30.0
CHURN_PER_MINUTE = 0.1
SETTLES, LASTS = 6, 4  # intervals
LOOKS = 2  # intervals within which every peer is found
PATIENCE_SECONDS = 600.0
AGREES_WITHIN = 0.2


@dataclass
class Crowd:
    """All houses of one network, and the active set."""

    houses: list[House]
    clock: HandClock
    random: random.Random
    board: Board = field(default_factory=lambda: Board(LIFETIME_SECONDS))
    look: int = 0
    made: int = 0
    active: list[PeerId] = field(default_factory=list)
    seated: dict[PeerId, int] = field(default_factory=dict)  # the interval since which a peer is active
    found: int = 0
    missed: int = 0

    def arrive(self, count: int) -> None:
        """Add so many peers that know nothing yet."""
        for _ in range(count):
            self.made += 1
            tenant = Tenant(Identity(digest_of(b"tenant", self.made.to_bytes(8, "big"))), born=self.look)
            # neighbours live in one house, so that it reads few places for all of them
            place = shard_of(tenant.me, DEPTH_MAX) - (1 << DEPTH_MAX)
            self.houses[place * len(self.houses) >> DEPTH_MAX].tenants.append(tenant)

    def die(self, count: int) -> None:
        """Remove so many peers, drawn at random."""
        for house, tenant in self.random.sample([(h, t) for h in self.houses for t in h.tenants], count):
            house.tenants.remove(tenant)

    @property
    def everybody(self) -> list[Tenant]:
        return [one for house in self.houses for one in house.residents]

    def elect(self) -> None:
        """Fill the active set: present members stay, and the peers here longest replace those that are gone."""
        here = {one.me: one.born for one in self.everybody}
        staying = [peer for peer in self.active if peer in here]
        others = sorted(here.keys() - set(staying), key=lambda peer: (here[peer], peer))
        self.active = (staying + others)[:ACTIVE]
        self.seated = {peer: self.seated.get(peer, self.look) for peer in self.active}

    async def interval(self, churn: bool) -> None:
        """Give every house one turn, one after the other."""
        self.look += 1
        if churn:
            changing = round(PEERS * CHURN_PER_MINUTE * INTERVAL_SECONDS / 60)
            self.die(changing)
            self.arrive(changing)
        self.elect()
        for house in self.random.sample(self.houses, len(self.houses)):
            await house.turn(self.look, frozenset(self.active), self.board, self.random.getrandbits(32))
            self.clock.offset_seconds += INTERVAL_SECONDS / len(self.houses)

    def check(self) -> None:
        """Check that a peer that has been here for `LOOKS` intervals has been found by all that need it."""
        since = self.look - LOOKS
        active = {peer for peer, look in self.seated.items() if look <= since}
        old = {one.me: one for one in self.everybody if one.born <= since}
        neighbours: dict[tuple[int, int], set[PeerId]] = defaultdict(set)
        for depth in {one.shards.depth for one in old.values()}:
            for peer in old:
                neighbours[depth, shard_of(peer, depth)].add(peer)
        for reader in old.values():
            depth = reader.shards.depth
            near = neighbours[depth, shard_of(reader.me, depth)]
            for other in (old[peer] for peer in near | (active & old.keys())):
                if other is not reader and needs(reader, other, active):
                    seen = reader.saw.get(other.me, -LOOKS) > since
                    self.found, self.missed = self.found + seen, self.missed + (not seen)


async def lived(folder: Path) -> Crowd:
    """Let all peers arrive at once, settle, and then change."""
    clock = HandClock()
    nodes = Nodes(folder, RecordRules(RUN_ID, KeyVerifier()), clock)
    owners = [Identity(digest_of(b"owner", bytes([number]))) for number in range(NODES)]
    try:
        first = await nodes.start(owners[0])
        stores = [first, *[await nodes.start(owner, await address_of(first)) for owner in owners[1:]]]
        houses = [
            House(RUN_ID, store, owner, clock, await address_of(store))
            for store, owner in zip(stores, owners, strict=True)
        ]
        crowd = Crowd(houses, clock, random.Random(0))
        crowd.arrive(PEERS - NODES)
        for _ in range(SETTLES):
            await crowd.interval(churn=False)
        for house in houses:
            house.begin_to_count()
        for _ in range(LASTS):
            await crowd.interval(churn=True)
            crowd.check()
        for house in houses:
            house.count_records()
        return crowd
    finally:
        await nodes.close()


@pytest.fixture(scope="module")
def crowd(short_folder: Path) -> Iterator[Crowd]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CALL_SECONDS_MAX", "PATIENCE_SECONDS", "GRACE_SECONDS"):
            patch.setattr(hivemind_store, name, PATIENCE_SECONDS)
        patch.setattr(HivemindStore, "_deadline", no_deadline)
        yield asyncio.run(lived(short_folder))


pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(900)]


def test_a_present_peer_is_found_within_two_looks_by_all_that_need_it(crowd: Crowd) -> None:
    print(f"\n{crowd.found} found, {crowd.missed} missed; depths {sorted({t.shards.depth for t in crowd.everybody})}")
    assert crowd.found > PEERS * ACTIVE
    assert crowd.missed == 0


def test_a_peer_keeps_no_more_than_its_part(crowd: Crowd) -> None:
    assert (REPLICAS, ACQUAINTANCES) == (hivemind_store.REPLICAS, hivemind_store.ACQUAINTANCES)
    kept = sum(house.records_kept for house in crowd.houses) / PEERS
    counted = crowd.board.held(NODES, crowd.clock()) / PEERS
    print(f"\nrecords per peer: kept {kept:.1f}, as the simulator counts {counted:.1f}")
    assert kept == pytest.approx(counted, rel=AGREES_WITHIN)
    assert max(house.fullest_place for house in crowd.houses) < ENTRIES_PER_KEY_MAX


@pytest.mark.parametrize("way", ["put", "got"])
def test_a_look_costs_what_the_simulator_counts(crowd: Crowd, way: str) -> None:
    """Checks the peers with their own node, whose calls are all real."""
    at = ("put", "got").index(way)
    real = mean(one[at] for house in crowd.houses for one in house.own_bytes) * 60 / INTERVAL_SECONDS
    counted = mean(one[at] for house in crowd.houses for one in house.board_bytes) * 60 / INTERVAL_SECONDS
    print(f"\n{way}, bytes per peer and minute: {real:,.0f}, as the simulator counts {counted:,.0f}")
    assert real == pytest.approx(counted, rel=AGREES_WITHIN)
