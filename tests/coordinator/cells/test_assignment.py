"""Assignment of wards to heads and cells, and proofs of work in them: pure rules, for any wards and any lies."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cells.assignment import (
    CELL_PEERS,
    HEADS_PER_WARD_MAX,
    WARDS_MAX,
    assign_cells,
    heads_for,
    heads_of,
    is_included,
)
from coordinator.cells.cell_group import read_cell
from coordinator.chain.certificate import COUNT_MAX, Contributor
from coordinator.chain.chain import beacon_order
from coordinator.chain.weights import CREDITED
from coordinator.core.tickets import seated
from coordinator.round.cell_input import total
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.simulator.keys import virtual_peer_id
from coordinator.wire.messages import CellRoster, CellYield, Ward
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement, digest_of
from tests.coordinator.builders import Club, boot

CLUB = Club.of(6, founders=4)
CHAIN = CLUB.chain(0, [CLUB.certify(CLUB.chain(), range(4))])
BEACON = digest_of(b"a beacon")
NAMES = [virtual_peer_id(number, 1) for number in range(WARDS_MAX + 40)]


@given(st.integers(0, len(NAMES)))
def test_every_ward_is_dealt_one_cell_none_larger_than_a_group(count: int) -> None:
    wards = NAMES[:count]
    assigned = assign_cells(wards)
    in_cells = [peer for leader, below in assigned.below.items() for peer in (leader, *below)]
    assert sorted(in_cells or assigned.own) == sorted(wards[:WARDS_MAX])
    assert len(assigned.own) < PEERS_PER_GROUP_MAX  # the head is in its cell, too
    assert assigned.height == (2 if count >= PEERS_PER_GROUP_MAX else 1)
    sizes = [1 + len(below) for below in assigned.below.values()]
    assert not sizes or max(sizes) <= min(sizes) + 1 <= PEERS_PER_GROUP_MAX + 1
    assert not sizes or max(sizes) <= CELL_PEERS or len(sizes) == PEERS_PER_GROUP_MAX - 1


@given(st.sets(st.sampled_from(NAMES[:40]), min_size=2), st.sampled_from(NAMES))
def test_a_ward_keeps_its_heads_when_another_leaves(heads: set[PeerId], ward: PeerId) -> None:
    chosen = heads_for(BEACON, ward, heads)
    assert len(chosen) == min(len(heads), HEADS_PER_WARD_MAX)
    for gone in heads:
        after = heads_for(BEACON, ward, heads - {gone})
        assert [one for one in after if one in chosen] == [one for one in chosen if one != gone]


def test_wards_spread_over_heads_and_move_with_the_beacon() -> None:
    heads = frozenset(NAMES[:32])
    of = {ward: heads_for(BEACON, ward, heads) for ward in NAMES}
    for choice in range(HEADS_PER_WARD_MAX):
        counts = Counter(chosen[choice] for chosen in of.values())
        assert min(counts[head] for head in heads) > 10
        assert max(counts.values()) < 64  # 32 expected; six standard deviations are 34
    moved = sum(heads_for(digest_of(BEACON), ward, heads)[0] != chosen[0] for ward, chosen in of.items())
    assert moved > 0.9 * len(of)
    assert heads_for(BEACON, NAMES[0], frozenset()) == ()


def test_heads_are_those_whose_seats_are_safe() -> None:
    assert heads_of(CHAIN) == CHAIN.newest_roster() == CLUB.peers(range(4))
    assert heads_of(CHAIN.truncated(0)) == frozenset()  # before there is a version
    club = Club.of(PEERS_PER_GROUP_MAX)
    chain = club.chain(0, [club.certify(club.chain(), range(PEERS_PER_GROUP_MAX))])
    strangers = [virtual_peer_id(number, 2) for number in range(PEERS_PER_GROUP_MAX)]
    order = beacon_order(chain.beacon(), [*club.ids, *strangers])
    assert heads_of(chain) == chain.newest_roster() & set(seated(order, chain.newest_roster()))


def line(number: int, steps: int, cell: CellYield | None = None) -> Contributor:
    digest = None if cell is None else cell.digest
    return Contributor(peer=NAMES[number], tokens=min(64 * steps, COUNT_MAX), steps=steps, cell=digest)


LOWER = CellYield(contributors=(line(1, 3), line(2, 4)))
UPPER = CellYield(contributors=(line(1, 7, LOWER), line(5, 2)))
ABOVE = (line(9, 9, UPPER), line(8, 30))


def test_work_is_in_a_version_if_every_leader_brought_just_that() -> None:
    assert total(LOWER.contributors) == (448, 7)
    assert is_included(line(2, 4), (NAMES[1], NAMES[9]), (LOWER, UPPER), ABOVE)
    assert is_included(line(5, 2), (NAMES[9],), (UPPER,), ABOVE)
    assert not is_included(line(3, 4), (NAMES[1], NAMES[9]), (LOWER, UPPER), ABOVE)  # not in its cell's yield
    assert not is_included(line(2, 3), (NAMES[1], NAMES[9]), (LOWER, UPPER), ABOVE)  # with other steps
    assert not is_included(line(2, 4), (NAMES[1], NAMES[8]), (LOWER, UPPER), ABOVE)  # another head
    assert not is_included(line(2, 4), (NAMES[1],), (LOWER, UPPER), ABOVE)
    assert not is_included(line(2, 4), (), (), ABOVE)


def test_the_work_of_a_cell_fits_into_a_commitment() -> None:
    assert total((line(1, COUNT_MAX), line(2, COUNT_MAX))) == (COUNT_MAX, COUNT_MAX)


@given(
    st.lists(st.integers(5, 50), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(1, COUNT_MAX), st.integers(1, COUNT_MAX)), max_size=19),
)
def test_no_minority_takes_the_weight_of_its_cell_or_multiplies_its_tokens(
    honest: list[int], claims: list[tuple[int, int]]
) -> None:
    claims = claims[: len(honest) - 1]
    lines = [line(number, steps) for number, steps in enumerate(honest)]
    lies = [Contributor(peer=NAMES[0], tokens=min(one, 64 * steps), steps=steps) for one, steps in claims]
    (tokens, steps), (all_tokens, all_steps) = total(lines), total([*lines, *lies])
    assert (tokens, steps) == (64 * sum(honest), sum(honest))
    assert all_tokens**2 * (steps + 1) >= tokens**2 * all_steps  # T²/S, except for one step by which S is rounded up
    assert all_tokens <= tokens + len(lies) * CREDITED * 64 * max(honest)
    assert 0 < all_tokens <= 64 * all_steps  # a plausible commitment


@pytest.mark.parametrize("as_if", [None, LOWER, CellYield(contributors=(line(6, 5), line(5, 4)))])
def test_a_leader_that_names_others_has_not_brought_our_work(as_if: CellYield | None) -> None:
    """The sums are the same, but listed as its own work, another cell's, or another peer's."""
    assert not is_included(line(5, 2), (NAMES[9],), (UPPER,), (line(9, 9, as_if), line(8, 30)))


def test_a_leader_that_claims_more_than_it_names_has_not_brought_our_work() -> None:
    assert not is_included(line(5, 2), (NAMES[9],), (UPPER,), (line(9, 10, UPPER), line(8, 30)))


@given(st.integers(0, 2), st.integers(1, 100))
def test_a_leader_that_brings_anything_else_has_not_brought_our_work(place: int, more: int) -> None:
    def bent(one: Contributor) -> Contributor:
        return one.model_copy(update={"steps": one.steps + more})

    lists = [LOWER.contributors, UPPER.contributors, ABOVE]
    lists[place] = (bent(lists[place][0]), *lists[place][1:])
    cells = tuple(CellYield(contributors=one) for one in lists[:2])
    assert not is_included(line(2, 4), (NAMES[1], NAMES[9]), cells, lists[2])


# -- rosters of cells


def ward(number: int) -> Ward:
    return Ward(peer=CLUB.ids[number], boot=boot(number), dialable=True)


def cell(sender: int, leader: int, *wards: Ward, height: int = 1, base: bytes = CHAIN.digest) -> Statement:
    body = CellRoster(leader=CLUB.ids[leader], height=height, wards=wards)
    return CLUB.say(sender, "cell", body, fragment=0, version=1, group=base)


def test_a_cell_is_what_its_head_signed() -> None:
    group = read_cell(cell(0, 0, ward(0), ward(4), ward(5)), CHAIN)
    assert group.leader == group.head == CLUB.ids[0]
    assert set(group.members) == set(group.reducers) == CLUB.peers((0, 4, 5))
    assert {group.reducer(partition, {partition}) for partition in range(2)} == {CLUB.ids[0]}
    assert set(group.receivers(CLUB.ids[4])) == CLUB.peers((0, 4))
    below = read_cell(cell(0, 4, ward(4), ward(5)), CHAIN)
    assert (below.leader, below.head) == (CLUB.ids[4], CLUB.ids[0])


def test_a_cell_leader_brings_it_into_its_heads_own_cell_and_into_no_other() -> None:
    own, flat = read_cell(cell(0, 0, ward(0), height=2), CHAIN), read_cell(cell(0, 0, ward(0)), CHAIN)
    below, other = read_cell(cell(0, 4, ward(4), ward(5)), CHAIN), read_cell(cell(0, 5, ward(4), ward(5)), CHAIN)
    assert [one.tiers for one in (own, flat, below, other)] == [1, 1, 2, 2]
    assert own.fits(below)
    assert below.fits(own)
    assert not any(below.fits(one) for one in (flat, other, below))


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (cell(0, 0, ward(0), ward(4), ward(4)), "twice"),
        (cell(0, 0, ward(4), ward(5)), "no nonce of its leader"),
        (cell(5, 5, ward(4)), "nobody's head"),
        (cell(0, 0, ward(4), base=bytes(32)), "another base"),
        (cell(0, 4, ward(4), ward(5), height=2), "not the head's own"),
        (cell(0, 0, ward(4)).model_copy(update={"signature": bytes(32)}), "not signed"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_no_other_cell_counts(statement: Statement, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        read_cell(statement, CHAIN)
