"""The duty of a reducer (design §6.2 step 6) and the weights of what it merges."""

from __future__ import annotations

import math
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.group import read_input_set
from coordinator.reducer import ReducerDuty, reduce_inputs
from coordinator.weights import TRUNCATION, contribution_weight, truncated, weights_of
from tests.coordinator.builders import CODEC, NOW, Club, digest

CLUB = Club.of(7)
CHAIN = CLUB.chain()
GROUP = CLUB.group(CHAIN, range(7))
INPUTS = CLUB.inputs(CHAIN, GROUP)
DEADLINE = NOW + 3.0
PARTITION = 2


def duty(inputs_min=2):
    return ReducerDuty(GROUP, INPUTS, PARTITION, 0, inputs_min, DEADLINE)


def root_of(member):
    return INPUTS.commits[member].part_roots[PARTITION]


def test_it_waits_for_everything_that_may_come():
    work = duty()
    for member in range(7):
        assert work.decide(NOW) is None
        work.arrive(member, root_of(member))
    reduce = work.decide(NOW)
    assert reduce is not None
    assert (reduce.key, reduce.partition, reduce.partitions, reduce.turn) == (GROUP.key, PARTITION, 7, 0)
    assert [(one.member, one.root) for one in reduce.inputs] == [(member, root_of(member)) for member in range(7)]


def test_it_reduces_once():
    work = duty()
    for member in range(7):
        work.arrive(member, root_of(member))
    assert work.decide(NOW) is not None
    assert work.decide(NOW) is None
    assert work.decide(DEADLINE + 1) is None


def test_at_the_deadline_it_goes_on_with_what_is_there():
    work = duty()
    for member in (6, 0, 1, 3):
        work.arrive(member, root_of(member))
    assert work.decide(math.nextafter(DEADLINE, 0)) is None
    reduce = work.decide(DEADLINE)
    assert reduce is not None
    assert [one.member for one in reduce.inputs] == [0, 1, 3, 6]


def test_too_few_inputs_are_never_reduced():
    work = duty()
    for member in (0, 1, 2):  # of seven, four are needed
        work.arrive(member, root_of(member))
    assert work.decide(DEADLINE + 100) is None
    work.arrive(3, root_of(3))  # late, but still in time for somebody who has waited
    assert work.decide(DEADLINE + 100) is not None


def test_the_manifest_may_ask_for_more_inputs():
    work = duty(inputs_min=6)
    for member in range(5):
        work.arrive(member, root_of(member))
    assert work.decide(DEADLINE) is None
    work.arrive(5, root_of(5))
    reduce = work.decide(DEADLINE)
    assert reduce is not None
    assert reduce.inputs_min == 6


def test_bytes_that_were_not_committed_are_removed():
    work = duty()
    work.arrive(0, digest("something else"))
    work.arrive(1, None)
    for member in range(2, 7):
        work.arrive(member, root_of(member))
    reduce = work.decide(NOW)  # nothing else is to be waited for
    assert reduce is not None
    assert [one.member for one in reduce.inputs] == [2, 3, 4, 5, 6]


def test_the_right_bytes_count_even_after_wrong_ones():
    work = duty()
    for member in range(7):
        work.arrive(member, digest("something else"))
        work.arrive(member, root_of(member))
    reduce = work.decide(NOW)
    assert reduce is not None
    assert len(reduce.inputs) == 7


def test_another_partitions_bytes_are_wrong_bytes():
    work = duty()
    work.arrive(0, INPUTS.commits[0].part_roots[PARTITION + 1])
    assert (work.arrived, work.hopeless) == (set(), {0})


def test_whoever_was_lost_is_not_waited_for_but_may_still_come():
    work = duty()
    for member in range(6):
        work.arrive(member, root_of(member))
    work.lose(INPUTS.peers[6])
    assert work.missing() == []
    work.arrive(6, root_of(6))
    reduce = work.decide(NOW)
    assert reduce is not None
    assert len(reduce.inputs) == 7


def test_losing_whoever_has_delivered_or_does_not_contribute_changes_nothing():
    work = duty()
    work.arrive(0, root_of(0))
    work.lose(INPUTS.peers[0])
    work.lose(Club.of(8).ids[7])
    assert (work.arrived, work.hopeless) == ({0}, set())
    assert work.missing() == list(INPUTS.peers[1:])


@pytest.mark.parametrize(("contributors", "needed"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 4), (7, 4)])
def test_two_thirds_of_the_inputs_are_needed_rounded_down(contributors, needed):
    commits = [CLUB.commit(number, GROUP) for number in range(contributors)]
    inputs = read_input_set(CLUB.bundle(GROUP, commits), GROUP, CODEC, CHAIN)
    work = ReducerDuty(GROUP, inputs, 0, 0, 1, DEADLINE)
    for member in range(needed - 1):
        work.arrive(member, inputs.commits[member].part_roots[0])
    assert work.decide(DEADLINE) is None
    work.arrive(needed - 1, inputs.commits[needed - 1].part_roots[0])
    assert work.decide(DEADLINE) is not None


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=20), st.booleans())
def test_what_is_reduced_is_what_arrived_whatever_the_order(arrivals, late):
    work = duty()
    for member, right in arrivals:
        work.arrive(member, root_of(member) if right else digest("wrong"))
    arrived = sorted({member for member, right in arrivals if right})
    all_said = {member for member, _ in arrivals} == set(range(7))
    reduce = work.decide(DEADLINE if late else NOW)
    assert (reduce is not None) == (len(arrived) >= 4 and (late or all_said))
    if reduce is not None:
        assert [one.member for one in reduce.inputs] == arrived


# -- weights


def test_weights_come_from_the_whole_input_set():
    """Who is missing does not change what the others weigh, so every partition has the same weights."""
    commits = [CLUB.commit(number, GROUP, tokens=100 * (number + 1)) for number in range(7)]
    inputs = read_input_set(CLUB.bundle(GROUP, commits), GROUP, CODEC, CHAIN)
    work = ReducerDuty(GROUP, inputs, 0, 0, 1, DEADLINE)
    for member in (0, 1, 2, 3):
        work.arrive(member, inputs.commits[member].part_roots[0])
    reduce = work.decide(DEADLINE)
    assert reduce is not None
    whole = reduce_inputs(inputs)
    assert [one.weight for one in reduce.inputs] == [one.weight for one in whole[:4]]
    assert [one.squared_norms for one in whole] == [commit.squared_norms for commit in inputs.commits]


def test_a_weight_is_quantity_times_quality():
    assert contribution_weight(tokens=1000, steps=10) == 1000 * (1000 / 10)
    assert contribution_weight(tokens=1000, steps=0) == 0.0


def test_no_claim_weighs_more_than_one_and_a_half_medians():
    assert weights_of([(100, 10), (100, 10), (2**53, 1)]) == (1000.0, 1000.0, 1500.0)
    assert weights_of([(0, 0), (100, 10), (2**53, 1)]) == (0.0, 1000.0, 1500.0)  # nothing is no vote on the median


counters = st.lists(st.tuples(st.integers(0, 2**53), st.integers(0, 2**53)), max_size=32)


@given(counters)
def test_weights_are_finite_bounded_and_in_order(claims):
    weights = weights_of(claims)
    assert len(weights) == len(claims)
    assert all(math.isfinite(weight) and weight >= 0 for weight in weights)
    positive = [weight for weight in weights if weight > 0]
    if positive:
        assert max(positive) <= TRUNCATION * median_low(positive) * (1 + 1e-12)


@given(counters, st.randoms(use_true_random=False))
def test_weights_do_not_depend_on_the_order(claims, random):
    order = random.sample(range(len(claims)), len(claims))
    weights = weights_of(claims)
    assert weights_of([claims[at] for at in order]) == tuple(weights[at] for at in order)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=32))
def test_truncation_touches_only_what_is_above_the_limit(values):
    positive = [value for value in values if value > 0]
    limit = TRUNCATION * median_low(positive) if positive else 0.0
    assert truncated(values) == tuple(value if value <= limit else limit for value in values)


def test_a_minority_of_claims_cannot_buy_more_than_its_share():
    honest, boast = [(100, 10)] * 5, [(2**53, 1)] * 2
    weights = weights_of([*honest, *boast])
    assert sum(weights[5:]) / sum(weights) == pytest.approx(3 / 8)
