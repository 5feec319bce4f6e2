"""A few certificates prove a long chain if groups change slowly; certificates of other peers prove nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import CHAIN_KEPT, Chain
from coordinator.chain.proof import FragmentProof, Proof, check_fragment, proving
from coordinator.chain.skipping import skipping, vouches_for
from dht.errors import PeerError
from tests.coordinator.builders import Club

CLUB = Club.of(8, founders=4)
OTHERS = Club.of(8, founders=4, seed=1)


def grown(*rosters: tuple[int, ...]) -> list[Certificate]:
    chain = CLUB.chain()
    CLUB.grow(chain, *rosters)
    return list(chain.certificates)


def turning(versions: int, stay: int = 4) -> list[tuple[int, ...]]:
    """Return rosters of four of eight peers, in which one peer is replaced every `stay` versions."""
    return [tuple((version // stay + place) % 8 for place in range(4)) for version in range(versions)]


def check(certificates: list[Certificate]) -> int:
    """Return how many certificates were shown; raises PeerError if they prove nothing."""
    found = check_fragment(CLUB.manifest, 0, certificates, certificates[-1].state, CLUB.verifier)
    assert found.from_founders
    return found.shown


LONG = grown(*turning(60))
MEMORY = CLUB.rules.memory


@given(st.integers(1, 60))
def test_few_certificates_lead_from_the_founders_to_the_newest(versions: int) -> None:
    few = list(proving((), LONG[:versions], MEMORY))
    assert few[0].version == 1
    assert few[-1] == LONG[versions - 1]
    assert check(few) <= 2 + versions // 4


def test_groups_that_stay_need_the_first_and_the_newest_only() -> None:
    every = grown(*[(0, 1, 2, 3)] * 30)
    assert [one.version for one in proving((), every, MEMORY)] == [1, 30]


@given(st.lists(st.integers(1, 59), max_size=5).map(sorted))
def test_it_comes_to_the_same_in_pieces(cuts: list[int]) -> None:
    passed: list[Certificate] = []
    for start, end in zip([0, *cuts], [*cuts, 60], strict=True):
        passed = skipping(passed, LONG[start:end])
    assert passed == skipping((), LONG)
    assert skipping(passed, LONG) == passed


@given(st.integers(1, 8))
def test_one_that_is_left_out_is_missed_where_it_was_needed(place: int) -> None:
    few = list(proving((), LONG, MEMORY))
    del few[place]
    with pytest.raises(PeerError, match="is not signed by most of the group of version"):
        check(few)


def _another_state(one: Certificate) -> Certificate:
    return one.model_copy(update={"state": bytes(32)})


def _fewer_votes(one: Certificate) -> Certificate:
    return one.model_copy(update={"votes": one.votes[:1]})


def _another_version(one: Certificate) -> Certificate:
    return one.model_copy(update={"outcome": one.outcome.model_copy(update={"version": one.version + 1})})


def _another_roster(one: Certificate) -> Certificate:
    roster = (*one.outcome.roster[:-1], OTHERS.ids[0])
    return one.model_copy(update={"outcome": one.outcome.model_copy(update={"roster": roster})})


@pytest.mark.parametrize("change", [_another_state, _fewer_votes, _another_version, _another_roster])
@pytest.mark.parametrize("place", [0, 1, 5, -1])
def test_no_certificate_shown_may_be_changed(change: Callable[[Certificate], Certificate], place: int) -> None:
    few = list(proving((), LONG, MEMORY))
    state = few[-1].state
    few[place] = change(few[place])
    with pytest.raises(PeerError):
        check_fragment(CLUB.manifest, 0, few, state, CLUB.verifier)


def test_a_chain_of_others_is_not_attached() -> None:
    chain = OTHERS.chain()
    OTHERS.grow(chain, *[(0, 1, 2, 3)] * 9)
    few = [*proving((), LONG, MEMORY), chain.certificates[-1]]
    with pytest.raises(PeerError):
        check([few[0], few[-1]])
    with pytest.raises(PeerError):
        check([chain.certificates[0], few[-1]])


def test_another_parent_next_to_one_that_is_shown_is_refused() -> None:
    first, second = grown((0, 1, 2, 3), (0, 1, 2, 3))
    (_, other) = grown((0, 1, 2, 4), (0, 1, 2, 3))
    assert vouches_for(first, second)
    assert not vouches_for(first, other)


def test_where_a_group_is_replaced_at_once_all_certificates_are_shown() -> None:
    """Nothing is lost: a whole chain back to the founders is checked as peers check it."""
    rosters = [(0, 1, 2, 3, 4, 5)] * 3 + [(0, 1, 2, 3, 6, 7)] * 3
    every = grown(*rosters)
    apart = [every[0], every[-1].model_copy()]
    assert check(list(proving((), every, MEMORY))) < len(every)
    minor = grown((0, 1, 2, 3, 4, 5), (0, 1))
    assert minor[-1].outcome.minor
    assert list(proving((), minor, MEMORY)) == minor
    assert check(apart) == 2


def test_a_peer_that_came_later_shows_the_newest_certificates() -> None:
    assert list(proving((), LONG[10:], MEMORY)) == LONG[-MEMORY - 1 :]
    assert skipping((), LONG[10:]) == []


@pytest.mark.slow
@pytest.mark.timeout(900)  # eight hundred thousand signatures
def test_a_hundred_thousand_versions_are_proven_by_less_than_a_megabyte_in_five_seconds() -> None:
    """The roster has eight of twenty-four peers, and one leaves every two hundred versions on average."""
    club, rng = Club.of(24, founders=8, real_keys=True), random.Random(3)
    roster, chain = list(range(8)), club.chain()
    passed: list[Certificate] = []
    newer: list[Certificate] = []
    for version in range(100_000):
        if rng.random() < 1 / 200:
            roster[rng.randrange(8)] = rng.choice([number for number in range(24) if number not in roster])
        newer.append(_extended(club, chain, tuple(roster)))
        if len(newer) == CHAIN_KEPT or version == 99_999:
            passed, newer = skipping(passed, newer), []
    proof = Proof(fragments=(FragmentProof(momentum=bytes(32), certificates=tuple(passed)),)).to_wire()
    assert len(proof) <= 1_000_000
    began = time.process_time()
    (one,) = Proof.from_wire(proof).fragments
    found = check_fragment(club.manifest, 0, one.certificates, one.certificates[-1].state, club.verifier)
    print(f"{len(proof):,} bytes, {found.shown} certificates, {time.process_time() - began:.2f} s")
    assert found.version == 100_000
    assert found.from_founders


def _extended(club: Club, chain: Chain, roster: tuple[int, ...]) -> Certificate:
    club.grow(chain, roster)
    return chain.certificates[-1]
