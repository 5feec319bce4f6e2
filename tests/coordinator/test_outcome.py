"""From checks to an outcome (design §6.2 steps 8–9): pure, and blind to the order in which checks came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.certificate import NO_TRUST_TABLE, active_set_digest
from coordinator.messages import Abstain, Result
from coordinator.outcome import (
    agreed_results,
    build_outcome,
    is_void,
    nonce_hash,
    partitions_to_redo,
    read_check,
)
from dht.errors import PeerError
from tests.coordinator.builders import Club, digest, forged, nonce

CLUB = Club.of(6, founders=4)
CHAIN = CLUB.grow(CLUB.chain(), (0, 1, 2, 3))
EVERYONE = (0, 1, 2, 3)
GROUP = CLUB.group(CHAIN, EVERYONE)
INPUTS = CLUB.inputs(CHAIN, GROUP)
RESULTS = [CLUB.result(GROUP, INPUTS, partition) for partition in range(4)]
DIGESTS = tuple(result.digest for result in RESULTS)
HELD = {result.digest: (GROUP.reducer(partition, 0), result.read(Result)) for partition, result in enumerate(RESULTS)}

views = st.tuples(*[st.sampled_from([digest_, digest("other"), None]) for digest_ in DIGESTS])


def checks(*results, **changes):
    """One check per member, in order: what each of them holds."""
    return [CLUB.check(number, GROUP, INPUTS, one, **changes) for number, one in zip(EVERYONE, results, strict=False)]


def without(*partitions):
    return tuple(None if partition in partitions else one for partition, one in enumerate(DIGESTS))


# -- reading checks


def test_a_complete_check_reveals_the_nonce():
    checked = CLUB.check(1, GROUP, INPUTS, DIGESTS)
    assert (checked.sender, checked.check.nonce) == (CLUB.ids[1], nonce(1, 0))


def test_after_a_redo_the_second_nonce_is_revealed():
    assert CLUB.check(1, GROUP, INPUTS, DIGESTS, phase=1).check.nonce == nonce(1, 1)


def test_an_incomplete_check_reveals_nothing():
    assert CLUB.check(1, GROUP, INPUTS, without(2)).check.complaints == (2,)
    assert CLUB.check(1, GROUP, INPUTS, without(2)).check.nonce is None


def test_a_witness_checks_too():
    group = CLUB.group(CHAIN, EVERYONE, witnesses=[2])
    inputs = CLUB.inputs(CHAIN, group)
    assert CLUB.check(2, group, inputs, [digest(0)] * 3).sender == CLUB.ids[2]


OTHER_GROUP = CLUB.group(CHAIN, (0, 1, 2))
OTHER_INPUTS = CLUB.inputs(CHAIN, OTHER_GROUP)
GOOD = CLUB.check_statement(1, GROUP, INPUTS, DIGESTS)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (CLUB.check_statement(5, GROUP, INPUTS, DIGESTS, nonce=None), "is no check of this group"),
        (CLUB.check_statement(1, OTHER_GROUP, OTHER_INPUTS, DIGESTS), "is no check of this group"),
        (CLUB.say(1, "redo", CLUB.check(1, GROUP, INPUTS, DIGESTS).check), "is no check of this group"),
        (CLUB.check_statement(1, GROUP, INPUTS, DIGESTS[:3]), "checks another number of partitions"),
        (CLUB.check_statement(1, GROUP, INPUTS, DIGESTS, nonce=nonce(2)), "reveals another nonce"),
        (CLUB.check_statement(1, GROUP, INPUTS, DIGESTS, nonce=nonce(1, 1)), "reveals another nonce"),
        (CLUB.check_statement(1, GROUP, INPUTS, DIGESTS, nonce=None), "reveals another nonce"),
        (CLUB.say(1, "check", Abstain(attempt=0), **CLUB.in_group(GROUP, INPUTS.digest)), "Check"),
        (forged(GOOD), "is not signed by its sender"),
        (GOOD.model_copy(update={"sender": CLUB.ids[2]}), "reveals another nonce"),
    ],
)
def test_a_check_that_is_wrong_in_one_thing_is_refused(statement, reason):
    with pytest.raises(PeerError, match=reason):
        read_check(statement, GROUP, INPUTS, CLUB.verifier)


def test_nonces_are_committed_by_their_hash():
    assert nonce_hash(nonce(1)) != nonce_hash(nonce(2))
    assert nonce_hash(nonce(1)) != nonce(1)


# -- agreement


def test_more_than_two_thirds_of_the_voters_must_hold_a_result():
    lacking = [DIGESTS, DIGESTS, without(3), without(2, 3)]
    assert agreed_results(GROUP, checks(*lacking)) == without(3)  # three of four hold 2, two hold 3
    assert agreed_results(GROUP, checks(*lacking[:3])) == without(3)
    assert agreed_results(GROUP, checks(*lacking[:2])) == (None,) * 4


def test_a_reducer_that_tells_everybody_something_else_is_void():
    other = (digest("other"), *DIGESTS[1:])
    assert agreed_results(GROUP, checks(DIGESTS, DIGESTS, other, other)) == without(0)


@given(st.lists(views, max_size=4), st.randoms(use_true_random=False))
def test_agreement_is_a_count_that_ignores_order(held, random):
    found = checks(*held)
    agreed = agreed_results(GROUP, found)
    for partition, one in enumerate(agreed):
        counts = {name: sum(view[partition] == name for view in held) for name in (DIGESTS[partition], digest("other"))}
        assert one == next((name for name, count in counts.items() if 3 * count > 2 * 4), None)
    assert agreed_results(GROUP, random.sample(found, len(found))) == agreed


@pytest.mark.parametrize(
    ("partitions", "void", "is_"),
    [
        (1, 0, False),
        (1, 1, True),
        (2, 1, True),
        (3, 1, False),
        (3, 2, True),
        (4, 1, False),
        (4, 2, True),
        (6, 2, False),
    ],
)
def test_more_than_a_third_void_and_the_round_is_void(partitions, void, is_):
    assert is_void([None] * void + [digest(0)] * (partitions - void)) is is_


# -- a second turn


@pytest.mark.parametrize(("complaining", "again"), [(0, ()), (1, ()), (2, (2,)), (4, (2,))])
def test_a_partition_is_reduced_again_if_more_than_a_third_complain(complaining, again):
    found = checks(*[without(2)] * complaining, *[DIGESTS] * (4 - complaining))
    assert partitions_to_redo(GROUP, found) == again


@given(st.lists(views, max_size=4), st.randoms(use_true_random=False))
def test_redo_counts_complaints_and_ignores_order(held, random):
    found = checks(*held)
    expected = tuple(p for p in range(4) if 3 * sum(view[p] is None for view in held) > 4)
    assert partitions_to_redo(GROUP, found) == expected
    assert partitions_to_redo(GROUP, random.sample(found, len(found))) == expected


def test_a_partition_that_does_not_exist_is_not_reduced_again():
    assert partitions_to_redo(GROUP, checks(*[DIGESTS] * 4, complaints=(31,))) == ()


# -- the outcome


def test_an_outcome_says_everything_that_was_decided():
    found = checks(*[without(1)] * 4)
    outcome = build_outcome(GROUP, INPUTS, found, HELD)
    assert (outcome.fragment, outcome.version, outcome.parent) == (0, CHAIN.version + 1, CHAIN.digest)
    assert (outcome.roster, outcome.roster_id) == (GROUP.members, GROUP.key.roster_id)
    assert (outcome.input_set, outcome.minor) == (INPUTS.digest, False)
    assert [one is None for one in outcome.partitions] == [False, True, False, False]
    assert [one.reducer for one in outcome.partitions if one] == [GROUP.reducer(p, 0) for p in (0, 2, 3)]
    assert [one.root for one in outcome.partitions if one] == [digest(("result", p, 0)) for p in (0, 2, 3)]
    assert [(one.peer, one.tokens, one.steps) for one in outcome.contributors] == [(p, 100, 10) for p in INPUTS.peers]
    assert outcome.active_set == active_set_digest(CHAIN.active_set())
    assert outcome.trust == NO_TRUST_TABLE


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), max_size=1))
def test_an_outcome_does_not_depend_on_the_order_of_the_checks(order, missing):
    found = checks(*[without(*missing)] * 4)
    again = checks(*[without(*missing)] * 4)
    assert build_outcome(GROUP, INPUTS, found, HELD) == build_outcome(GROUP, INPUTS, [again[at] for at in order], HELD)


def test_the_coin_needs_every_nonce_that_the_outcome_rests_on():
    coins = {
        build_outcome(GROUP, INPUTS, found, HELD).coin
        for found in (checks(*[DIGESTS] * 4), checks(*[DIGESTS] * 3), checks(*[DIGESTS] * 4, phase=1))
    }
    assert len(coins) == 3


def test_an_outcome_is_minor_where_its_group_is():
    chain = CLUB.grow(CLUB.chain(), EVERYONE)
    group = CLUB.group(chain, (0, 1))
    inputs = CLUB.inputs(chain, group)
    results = [CLUB.result(group, inputs, partition) for partition in range(2)]
    held = {one.digest: (group.reducer(p, 0), one.read(Result)) for p, one in enumerate(results)}
    found = [CLUB.check(number, group, inputs, [one.digest for one in results]) for number in (0, 1)]
    assert build_outcome(group, inputs, found, held).minor
