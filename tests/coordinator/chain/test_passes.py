"""Windows dealt out in passes: each to exactly one peer, even if peers come, go or fall behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import Contributor
from coordinator.chain.passes import WINDOWS_MIN, PassPlan, ReadingLane, lane_of, next_window, permuted
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, PaceSpec, RunConfig
from dht.errors import UsageError
from tests.coordinator.builders import Club, digest

CLUB = Club.of(6)
RUN = b"run"
Reading = tuple[tuple[int, int], int]
"""A pass, and a window of the text."""

members = st.integers(1, PEERS_PER_GROUP_MAX).flatmap(
    lambda lanes: st.builds(ReadingLane, st.integers(0, 2**20 - 1), st.integers(0, lanes - 1), st.just(lanes))
)
guests = st.builds(ReadingLane, st.integers(0, 2**20 - 1))
lanes = st.one_of(members, guests)


def config(versions: int = 40, sequences: int = 2) -> RunConfig:
    data = DataSpec(context_tokens=16, sequences_per_step=sequences, order="passes")
    return RunConfig(versions=versions, data=data, pace=PaceSpec(fragments=2))


def deal(windows: int, versions: int = 40, sequences: int = 2, peer: str = "peer") -> PassPlan:
    return PassPlan.of(windows, config(versions, sequences), RUN, peer)


def read(dealt: PassPlan, window: int) -> list[Reading]:
    return [dealt.sequence(window, sequence) for sequence in range(dealt.sequences_per_step)]


# -- the order of a pass


@given(count=st.integers(1, 700), key=st.binary(min_size=32, max_size=32))
def test_a_pass_has_every_window_once(count: int, key: bytes) -> None:
    assert sorted(permuted(place, count, key) for place in range(count)) == list(range(count))


@given(place=st.integers(0, 2**40 - 1), key=st.binary(min_size=32, max_size=32))
def test_a_place_in_the_largest_of_texts_is_looked_up_without_a_table(place: int, key: bytes) -> None:
    assert 0 <= permuted(place, 2**40, key) < 2**40


def test_passes_have_orders_of_their_own() -> None:
    orders = {tuple(permuted(place, 64, digest(key)) for place in range(64)) for key in range(50)}
    assert len(orders) == 50


# -- numbers


@given(lane=lanes, index=st.integers(0, 2**21 - 1))
def test_a_number_says_whose_window_it_is_and_fits_on_the_wire(lane: ReadingLane, index: int) -> None:
    assert ReadingLane.of(lane.first + index) == lane
    assert 0 <= lane.first + index <= 2**53


def test_before_anything_is_said_a_peer_is_a_guest_of_version_0() -> None:
    assert ReadingLane.of(0) == ReadingLane(0)


# -- the owner of a lane


def test_lanes_are_those_of_the_newest_version_s_contributors() -> None:
    chain = CLUB.grow(CLUB.chain(), range(6), [4, 1, 3])
    newest = chain.certificates[-1]
    found = [lane_of(newest, CLUB.ids, peer) for peer in CLUB.ids]
    assert {(one.rank, one.lanes) for one in found if one.lanes} == {(0, 3), (1, 3), (2, 3)}
    assert [bool(one.lanes) for one in found] == [False, True, False, True, True, False]
    assert {one.version for one in found} == {2}


def test_a_member_that_brought_nothing_leaves_no_gap() -> None:
    chain = CLUB.chain()
    one = (Contributor(peer=CLUB.ids[2], tokens=1, steps=1),)
    newest = CLUB.certify(chain, range(6), contributors=one)
    assert lane_of(newest, CLUB.ids, CLUB.ids[2]) == ReadingLane(1, 0, 1)
    assert lane_of(newest, CLUB.ids, CLUB.ids[3]) == ReadingLane(1)


def test_version_0_is_the_founders() -> None:
    assert [lane_of(None, CLUB.ids[:3], peer).lanes for peer in CLUB.ids] == [3, 3, 3, 0, 0, 0]
    assert len({lane_of(None, CLUB.ids[:3], peer).rank for peer in CLUB.ids[:3]}) == 3


@given(held=members, made=st.integers(0, 1000), newer=lanes)
def test_a_member_keeps_its_lane_until_it_has_another(held: ReadingLane, made: int, newer: ReadingLane) -> None:
    window = held.first + made
    assert next_window(window, held.first) == window
    assert next_window(window, newer.first) == (newer.first if newer.lanes and newer != held else window)


@given(held=guests, made=st.integers(0, 1000), newer=lanes)
def test_a_guest_goes_wherever_the_newest_version_has_it(held: ReadingLane, made: int, newer: ReadingLane) -> None:
    window = held.first + made
    assert next_window(window, newer.first) == (window if newer == held else newer.first)


# -- the promise


@given(st.integers(0, 10**9), st.integers(WINDOWS_MIN, 3000), st.integers(1, 60), st.integers(1, 5))
def test_no_window_is_given_twice_in_a_pass(seed: int, windows: int, versions: int, sequences: int) -> None:
    """The history of rosters is random: peers come and go, some are behind, some are much faster than others."""
    draw = random.Random(seed)
    peers = [f"peer {number}" for number in range(draw.randint(1, 12))]
    deals = {peer: deal(windows, versions, sequences, peer) for peer in peers}
    upcoming = dict.fromkeys(peers, 0)
    by_members: list[Reading] = []
    by_guests: set[Reading] = set()
    rosters: list[Sequence[str]] = [draw.sample(peers, draw.randint(1, len(peers)))]
    held = dict.fromkeys(peers, -1)
    for _ in range(draw.randint(1, 8)):
        rosters.append(sorted(draw.sample(peers, draw.randint(1, len(peers)))))
        for peer in draw.sample(peers, draw.randint(0, len(peers))):  # the others are away, or do not know yet
            held[peer] = draw.randint(max(0, held[peer]), len(rosters) - 1)
            roster = rosters[held[peer]]
            lane = (
                ReadingLane(held[peer], roster.index(peer), len(roster)) if peer in roster else ReadingLane(held[peer])
            )
            upcoming[peer] = next_window(upcoming[peer], lane.first)
            for _ in range(draw.choice((0, 1, 3, 12, 60))):
                found = read(deals[peer], upcoming[peer])
                if ReadingLane.of(upcoming[peer]).lanes:
                    by_members += found
                else:
                    by_guests.update(found)
                upcoming[peer] += 1
    assert max(Counter(by_members).values(), default=1) == 1
    assert not by_guests & set(by_members)


@given(st.integers(WINDOWS_MIN, 1500), st.integers(1, 60), st.integers(0, 10**9))
def test_everything_is_dealt_out_in_every_pass(windows: int, versions: int, seed: int) -> None:
    """The members of all versions in a pass get it, whatever their number; guests get a 64th or little more."""
    draw, dealt = random.Random(seed), deal(windows, versions, 1)
    turn, lap = draw.randint(0, 3), draw.randint(1, 3)
    found: list[int] = []
    for version in range(turn * dealt.blocks, (turn + 1) * dealt.blocks):
        count = draw.randint(1, PEERS_PER_GROUP_MAX)
        for rank in range(count):
            size = len(range(rank, dealt.block, count))
            first = ReadingLane(version, rank, count).first + lap * size
            readings = [dealt.sequence(window, 0) for window in range(first, first + size)]
            assert {of_pass for of_pass, _ in readings} == {(turn, lap)}
            found += [window for _, window in readings]
    left = windows - len(found)
    assert len(set(found)) == len(found)
    assert windows // 64 <= left <= windows // 64 + dealt.blocks
    first = ReadingLane(turn * dealt.blocks).first
    readings = [dealt.sequence(window, 0) for window in range(first, first + (lap + 1) * left)]
    by_guests = [window for of_pass, window in readings if of_pass == (turn, lap)]
    assert sorted(found + by_guests) == list(range(windows))


def test_a_run_that_fits_into_its_text_reads_it_in_one_pass() -> None:
    dealt = deal(1_000_000, versions=400, sequences=8)
    found = [
        reading
        for version in (0, 7, 200)
        for at in range(24)
        for reading in read(dealt, ReadingLane(version).first + at)
    ]
    assert {of_pass for of_pass, _ in found} == {(0, 0)}
    assert dealt.block >= 4800


def test_two_guests_seldom_meet() -> None:
    texts = [{window for at in range(4) for _, window in read(deal(10**7, peer=str(one)), at)} for one in range(20)]
    assert len(set.union(*texts)) == sum(map(len, texts))


def test_runs_differ_and_so_do_guests() -> None:
    one, lane = deal(10_000), ReadingLane(3, 1, 4).first
    assert read(one, lane) == read(replace(one, peer_id="other"), lane)
    assert read(one, lane) != read(replace(one, run_key=b"other"), lane)
    assert read(one, 5) != read(replace(one, peer_id="other"), 5)


def test_peers_of_two_versions_deal_alike() -> None:
    """The values are fixed: a change would make two peers of different versions read the same windows."""
    one = deal(10_000)
    assert [one.sequence(ReadingLane(version, 1, 3).first + at, 1) for version, at in ((0, 0), (7, 5), (30, 200))] == [
        ((0, 0), 7982),
        ((0, 0), 3877),
        ((1, 2), 718),
    ]


@given(st.integers(0, 2**53))
def test_any_number_that_a_peer_may_claim_is_some_window(window: int) -> None:
    for of_pass, found in read(deal(WINDOWS_MIN), window):
        assert 0 <= found < WINDOWS_MIN
        assert len(of_pass) == 2


def test_too_little_text_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"63 sequences of 16 tokens, and a run that .* needs 64; bring more text"):
        deal(WINDOWS_MIN - 1)
    assert deal(WINDOWS_MIN).block >= PEERS_PER_GROUP_MAX


# -- where a run may say so


def test_draws_are_the_default_and_leave_the_bytes_of_a_run_as_they_were() -> None:
    assert RunConfig(data=DataSpec(order="draws")).to_wire() == RunConfig().to_wire()
    assert RunConfig.from_wire(config().to_wire()) == config()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[data]\norder = "passes"\nsource = "own"', 'cannot be combined with data.source = "own"'),
        ('[data]\norder = "sorted"', "data.order"),
    ],
)
def test_passes_need_text_of_ours(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        RunConfig.parse(text, "run.toml")
