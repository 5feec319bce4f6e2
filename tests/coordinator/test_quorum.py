"""When a leader closes its roster (design §6.2 step 3, DiLoCo 2604.21428 §3.2)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.manifest import PEERS_PER_GROUP_MAX, PaceSpec
from coordinator.quorum import AVERAGE_WEIGHT, Gathered, GraceEstimates, close_roster, grace_seconds, quorum_size
from dht.identity import PeerId

PACE = PaceSpec(fragments=4, steps_per_version=24, overlap=2, quorum=3, grace_share=0.5, min_group=2, min_share=0.5)
PEERS = [PeerId(f"peer{number:02}") for number in range(40)]

seconds = st.floats(0, 100)
paces = st.builds(
    PaceSpec,
    fragments=st.integers(1, 16),
    steps_per_version=st.integers(1, 64),
    overlap=st.integers(1, 4),
    grace_share=st.floats(0, 0.9),
)


# -- the grace window


def test_the_window_is_that_of_the_paper():
    # ξ_round = 24 · 0.5 s / 4 = 3 s; γ · (τ·ξ_round − ξ_quorum − ξ_sync) = 0.5 · (6 − 1 − 0.5) = 2.25 s
    assert grace_seconds(PACE, 0.5, GraceEstimates(quorum_seconds=1.0, sync_seconds=0.5)) == 2.25


def test_what_was_never_measured_counts_as_nothing():
    assert grace_seconds(PACE, 0.5, GraceEstimates()) == 0.5 * 6


def test_the_window_is_never_longer_than_a_round():
    pace = PACE.model_copy(update={"overlap": 8})
    assert grace_seconds(pace, 0.5, GraceEstimates()) == 3.0


def test_the_window_leaves_time_for_a_message_there_and_back():
    slow = GraceEstimates(quorum_seconds=90.0, sync_seconds=90.0, round_trip_p95_seconds=0.2)
    assert grace_seconds(PACE, 0.5, slow) == 0.4
    assert grace_seconds(PACE, 0.5, replace(slow, round_trip_p95_seconds=5.0)) == 3.0  # a round is the limit even so


@given(paces, st.floats(1e-3, 10), seconds, seconds, seconds, st.floats(1e-3, 5))
def test_the_window_is_clamped_and_shrinks_the_longer_a_round_takes(pace, step, quorum, sync, more, round_trip):
    estimates = GraceEstimates(quorum, sync, round_trip)
    window, interval = grace_seconds(pace, step, estimates), pace.steps_per_version * step / pace.fragments
    assert min(2 * round_trip, interval) <= window <= interval
    assert grace_seconds(pace, step, replace(estimates, quorum_seconds=quorum + more)) <= window
    assert grace_seconds(pace, step, replace(estimates, sync_seconds=sync + more)) <= window


def test_estimates_move_a_tenth_of_the_way():
    first = GraceEstimates().with_round(2.0, 10.0)
    assert (first.quorum_seconds, first.sync_seconds) == (2.0, 10.0)
    second = first.with_round(4.0, 0.0)
    assert AVERAGE_WEIGHT == 0.1
    assert (second.quorum_seconds, second.sync_seconds) == (pytest.approx(2.2), pytest.approx(9.0))


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=10))
def test_estimates_stay_between_what_was_measured(rounds):
    estimates = GraceEstimates()
    for quorum, sync in rounds:
        estimates = estimates.with_round(quorum, sync)
    quorums = [quorum for quorum, _ in rounds]
    assert min(quorums) - 1e-9 <= estimates.quorum_seconds <= max(quorums) + 1e-9


# -- closing


def gathered(joined: int, active: int = 4, expected: int | None = None, **changes: object) -> Gathered:
    """`joined` peers are here, `expected` of them all could be (default: the active set)."""
    known = Gathered(
        joined=frozenset(PEERS[:joined]),
        contributors=joined,
        expected=frozenset(PEERS[: active if expected is None else expected]),
        active=frozenset(PEERS[:active]),
        grace_since=math.inf,
        grace_seconds=2.0,
        minor_allowed=False,
    )
    return replace(known, **changes)


@pytest.mark.parametrize(
    ("known", "closing", "reason"),
    [
        (gathered(1), False, "1 of at least 2 members"),
        (gathered(3, contributors=1), False, "1 of at least 2 members"),
        (gathered(2), False, "no more than 50% of the active set has joined"),
        (gathered(4), True, "everyone live has joined"),
        (gathered(3, expected=3), True, "everyone live has joined"),
        (gathered(4, active=6), False, "4 of 3 for the quorum"),
        (gathered(3, grace_since=9.0), False, "grace window open for 1.00 s more, 1 missing"),
        (gathered(3, grace_since=8.0), True, "grace window over, 1 missing"),
        (gathered(PEERS_PER_GROUP_MAX, active=40), True, "the group is full"),
        (gathered(2, expected=2, minor_allowed=True), False, "2 of 3 for the quorum"),
        (gathered(2, grace_since=8.0, minor_allowed=True), True, "grace window over, 2 missing"),
        (gathered(2, grace_since=8.0), False, "no more than 50% of the active set has joined"),
    ],
)
def test_whether_to_close_and_why(known, closing, reason):
    assert close_roster(known, PACE, now=10.0) == (closing, reason)


@given(
    st.integers(0, 34),
    st.integers(1, 34),
    st.integers(0, 34),
    st.floats(0, 20) | st.just(math.inf),
    st.booleans(),
    st.floats(0, 10),
)
def test_waiting_longer_never_opens_a_roster_that_was_to_be_closed(joined, active, expected, since, minor, later):
    known = gathered(joined, active, expected, grace_since=since, minor_allowed=minor)
    closing, _ = close_roster(known, PACE, now=20.0)
    later_closing, _ = close_roster(known, PACE, now=20.0 + later)
    assert later_closing or not closing
    if closing:
        assert joined >= PACE.min_group
        assert minor or min(joined, active) > active / 2


@given(st.integers(1, 32), st.integers(1, 32), st.integers(1, 100))
def test_the_quorum_fits_the_active_set_and_a_group(quorum, min_group, active):
    size = quorum_size(PACE.model_copy(update={"quorum": quorum, "min_group": min_group}), active)
    assert size >= min_group
    assert size == max(min(quorum, active), min_group)


def test_the_paper_quorum_of_one_closes_at_once_after_grace():
    pace = PACE.model_copy(update={"quorum": 1, "min_group": 1, "min_share": 0.0})
    assert close_roster(gathered(1, grace_since=8.0), pace, now=10.0) == (True, "grace window over, 3 missing")
