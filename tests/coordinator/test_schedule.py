"""When a round is due (design §6.2 step 1)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.manifest import PaceSpec
from coordinator.schedule import (
    Candidate,
    Pace,
    due_time,
    interval_seconds,
    median_rate,
    median_time,
    next_to_open,
    spacing_seconds,
    steps_needed,
)

PACE = PaceSpec(fragments=4, steps_per_version=24, round_seconds=8.0)
DEAD = Pace(steps=0, seen=0.0, steps_per_second=0.0)

voters = st.builds(
    Pace, steps=st.integers(0, 100), seen=st.floats(0, 100), steps_per_second=st.just(0.0) | st.floats(0.01, 100)
)
candidates = st.builds(
    Candidate, fragment=st.integers(0, 7), version=st.integers(0, 5), due_at=st.floats(0, 100) | st.just(math.inf)
)


def test_in_the_first_cycle_fragments_are_due_one_after_the_other():
    assert [steps_needed(PACE, fragment, 0) for fragment in range(4)] == [6, 12, 18, 24]  # (p+1)·H/P


@given(st.integers(0, 3), st.integers(1, 1000))
def test_later_every_fragment_needs_its_own_h_steps(fragment, version):
    assert steps_needed(PACE, fragment, version) == 24


def test_a_voter_is_extrapolated_by_its_rate():
    assert Pace(steps=4, seen=100.0, steps_per_second=2.0).reaches(24) == 110.0


def test_a_voter_that_is_there_already_was_there_when_seen():
    assert Pace(steps=30, seen=100.0, steps_per_second=0.0).reaches(24) == 100.0


def test_a_voter_that_stands_still_never_arrives():
    assert DEAD.reaches(24) == math.inf


@pytest.mark.parametrize(("count", "at"), [(1, 10.0), (2, 10.0), (3, 20.0), (4, 20.0), (5, 30.0)])
def test_the_median_voter_sets_the_pace_and_of_two_the_earlier(count, at):
    swarm = [Pace(steps=0, seen=10.0 * (number + 1), steps_per_second=1e9) for number in range(count)]
    assert median_time(swarm[::-1], 1) == pytest.approx(at)


def test_dead_voters_keep_counting():
    """Half of the voters may stand still; with more than half the median never arrives."""
    alive = Pace(steps=0, seen=0.0, steps_per_second=1.0)
    assert median_time([alive, DEAD], 24) == 24.0
    assert median_time([alive, DEAD, DEAD], 24) == math.inf


def test_without_voters_nothing_is_due():
    assert median_time([], 1) == due_time([], 1, 1, 0.0) == math.inf


def test_after_three_intervals_the_quorum_is_enough():
    swarm = [Pace(0, 0.0, rate) for rate in (4.0, 2.0, 0.0, 0.0, 0.0)]
    assert due_time(swarm, 24, quorum=2, patience_until=100.0) == 100.0  # not at 12 s, when the two are there
    assert due_time(swarm, 24, quorum=2, patience_until=10.0) == 12.0
    assert due_time(swarm, 24, quorum=3, patience_until=10.0) == math.inf


@given(st.lists(voters, min_size=1, max_size=9), st.floats(0, 200), st.integers(1, 9), st.floats(0, 1000))
def test_due_time_is_the_median_or_the_patient_quorum(swarm, steps, quorum, patience):
    due = due_time(swarm, steps, quorum, patience)
    arrived = sum(voter.reaches(steps) <= due for voter in swarm)
    if due < math.inf:
        assert 2 * arrived >= len(swarm) or (arrived >= quorum and due >= patience)
    assert due <= median_time(swarm, steps)


@given(st.lists(voters, min_size=1, max_size=9), st.floats(0, 100), st.floats(0, 100))
def test_more_steps_are_never_due_earlier(swarm, steps, more):
    assert median_time(swarm, steps) <= median_time(swarm, steps + more)


@given(st.lists(voters, min_size=1, max_size=9), st.integers(0, 8), st.floats(0, 100))
def test_one_fast_peer_does_not_set_the_pace(swarm, which, steps):
    """Whatever one of three or more voters claims, a round opens no earlier than some other voter has the steps."""
    if len(swarm) >= 3:
        liar = which % len(swarm)
        claims = [*swarm[:liar], Pace(10**6, 0.0, 1e6), *swarm[liar + 1 :]]
        others = [voter for number, voter in enumerate(swarm) if number != liar]
        assert median_time(claims, steps) >= min(voter.reaches(steps) for voter in others)


def test_spacing_is_four_fifths_of_what_is_expected():
    swarm = [Pace(0, 0.0, 2.0)] * 3
    assert interval_seconds(PACE, swarm) == 12.0
    assert spacing_seconds(PACE, swarm) == pytest.approx(0.8 * 12.0 / 4)


def test_while_nobody_moves_only_the_deadline_is_known():
    assert interval_seconds(PACE, [DEAD]) == interval_seconds(PACE, []) == PACE.round_seconds
    assert spacing_seconds(PACE, [DEAD]) == 0.0
    assert median_rate([DEAD, Pace(0, 0.0, 3.0), DEAD]) == 3.0


def test_the_lowest_version_then_the_lowest_index_opens_first():
    waiting = [Candidate(3, 1, 0.0), Candidate(2, 1, 5.0), Candidate(0, 2, 0.0), Candidate(1, 0, 99.0)]
    assert next_to_open(waiting, now=10.0) == waiting[1]
    assert next_to_open(waiting, now=4.0) == waiting[0]
    assert next_to_open(waiting[:0], now=4.0) is None


@given(st.lists(candidates, max_size=8), st.floats(0, 100), st.randoms(use_true_random=False))
def test_what_opens_is_due_and_does_not_depend_on_the_order(waiting, now, random):
    chosen = next_to_open(waiting, now)
    shuffled = random.sample(waiting, len(waiting))
    again = next_to_open(shuffled, now)
    assert (chosen is None) == all(one.due_at > now for one in waiting)
    if chosen is not None and again is not None:
        assert chosen.due_at <= now
        assert (chosen.version, chosen.fragment) == (again.version, again.fragment)
