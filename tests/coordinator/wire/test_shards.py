"""Presence shards: peers find all others, whatever the swarm's size, and no place overflows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.wire.shards import DEPTH_MAX, ROOT, PresenceShards, Survey, depth_for, shard_of, shards_at
from dht.identity import PeerId
from dht.records import SHARDS_MAX
from dht.table import ENTRIES_PER_KEY_MAX

depths = st.integers(0, DEPTH_MAX)
peers = st.integers(0, 10_000).map(lambda number: PeerId(f"peer-{number}"))


class Swarm:
    """A record store that forgets nothing, and peers that read it one after another."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.all: dict[PeerId, PresenceShards] = {}
        self.active: set[PeerId] = set()
        self.places: dict[int, dict[PeerId, int]] = {}
        self.fullest = 0
        self.grow(count)

    def grow(self, count: int) -> None:
        for number in range(len(self.all), count):
            self.all[PeerId(f"peer-{number}")] = PresenceShards(PeerId(f"peer-{number}"))
        self.active = set(list(self.all)[:32])

    def shrink(self, count: int) -> None:
        self.all = dict(list(self.all.items())[:count])

    def look(self) -> dict[PeerId, set[PeerId]]:
        """Let all peers write, then read; return the peers that each has found."""
        self.places = {}
        for peer, shards in self.all.items():
            for place in shards.written(self.active):
                self.places.setdefault(place, {})[peer] = shards.depth
        self.fullest = max(map(len, self.places.values()))
        found: dict[PeerId, set[PeerId]] = {}
        for peer, shards in self.all.items():
            read = {place: self.places.get(place, {}) for place in shards.read((), self.random.randrange(1 << 30))}
            known = {one: depth for records in read.values() for one, depth in records.items()}
            shards.found({place: len(records) for place, records in read.items()}, known, self.active)
            found[peer] = set(known)
        return found


@given(depths)
def test_each_depth_has_places_of_its_own_that_records_can_name(depth: int) -> None:
    places = shards_at(depth)
    assert len(places) == 2**depth
    assert max(places) < SHARDS_MAX
    assert not depth or min(places) > max(shards_at(depth - 1))


@given(peers, st.integers(0, DEPTH_MAX - 1))
def test_a_place_is_split_into_two(peer: PeerId, depth: int) -> None:
    above = shards_at(depth).index(shard_of(peer, depth))
    assert shards_at(depth + 1).index(shard_of(peer, depth + 1)) in (2 * above, 2 * above + 1)


@given(peers, peers, st.integers(1, DEPTH_MAX), st.sampled_from([-1, 0, 1]))
def test_neighbours_see_each_other_within_two_looks_while_their_depths_differ_by_one(
    reader: PeerId, writer: PeerId, depth: int, further: int
) -> None:
    theirs = min(DEPTH_MAX, depth + further)
    if shard_of(reader, max(depth, theirs)) != shard_of(writer, max(depth, theirs)):
        return  # they are not in the same shard
    looking = PresenceShards(reader, depth)
    read = {*looking.read((), 0), *looking.read((), 0)}
    assert read & set(PresenceShards(writer, theirs).written(()))


@given(st.floats(1, 1e6), depths)
def test_a_depth_that_suits_is_kept(population: float, depth: int) -> None:
    suits = depth_for(population, depth)
    assert depth_for(population, suits) == suits
    assert depth_for(population * 1.1, suits) <= suits + 1
    if 0 < suits < DEPTH_MAX:
        assert 38 <= population / 2**suits <= 96


def test_a_small_swarm_has_one_place() -> None:
    swarm = Swarm(90)
    for _ in range(4):
        found = swarm.look()
    assert swarm.places.keys() == {ROOT}
    assert all(seen == swarm.all.keys() for seen in found.values())


@pytest.mark.parametrize("count", [150, 700])
def test_a_swarm_settles_at_one_depth_with_the_active_set_in_everybodys_sight(count: int) -> None:
    swarm = Swarm(90)
    for size in range(90, count, 60):
        swarm.grow(size)
        swarm.look()
    swarm.grow(count)
    for _ in range(6):
        found = swarm.look()
        assert swarm.fullest <= ENTRIES_PER_KEY_MAX
    settled = [shards.depth for shards in swarm.all.values()]
    assert max(settled) - min(settled) <= 1
    assert all(swarm.active <= seen for seen in found.values())
    population = sorted(shards.population for shards in swarm.all.values())[count // 2]
    assert 0.75 * count < population < 1.4 * count


def test_many_who_come_at_once_find_the_depth_of_those_who_are_there() -> None:
    swarm = Swarm(800)
    for shards in list(swarm.all.values())[:400]:
        shards.depth = 3
    for _ in range(8):
        swarm.look()
    assert {shards.depth for shards in swarm.all.values()} <= {3, 4}


def test_a_swarm_that_shrinks_comes_together_again() -> None:
    swarm = Swarm(600)
    for shards in swarm.all.values():
        shards.depth = 3
    for count in (600, 300, 150, 80, 40):
        swarm.shrink(count)
        for _ in range(5):
            found = swarm.look()
    assert all(seen == swarm.all.keys() for seen in found.values())


def test_a_missing_peer_is_looked_for_in_its_own_place() -> None:
    shards = PresenceShards(PeerId("me"), 6)
    missing = PeerId("somebody")
    assert shard_of(missing, 6) in shards.read([missing], 0)
    assert shard_of(missing, 6) in shards.read([missing, shards.me], 1)
    assert PresenceShards(shards.me, 6).read([shards.me], 0) == PresenceShards(shards.me, 6).read([], 0)


@pytest.mark.parametrize(("depth", "looks"), [(0, 2), (3, 2), (5, 6)])
def test_a_survey_reads_every_place_in_turn(depth: int, looks: int) -> None:
    survey = Survey(depth)
    read = {place for _ in range(looks) for place in survey.read()}
    assert read >= {*shards_at(depth), *shards_at(max(0, depth - 1)), ROOT}
    survey.found([2, 2, 3])
    assert survey.depth == 2
