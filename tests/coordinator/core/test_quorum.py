"""Closing a roster, with the reason or the obstacle (design §6.2 step 3, DiLoCo 2604.21428 §3.2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.quorum import (
    AVERAGE_WEIGHT,
    GRACE_SECONDS_MIN,
    Gathered,
    GraceEstimates,
    close_roster,
    grace_seconds,
    quorum_size,
)
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, PaceSpec
from dht.identity import PeerId
from tests.coordinator.rigs import PACE, PEERS

seconds = st.floats(0, 1000)
estimates = st.builds(GraceEstimates, st.none() | seconds, st.none() | seconds)
paces = st.builds(
    PaceSpec,
    fragments=st.integers(1, 24),
    steps_per_version=st.integers(1, 100),
    overlap=st.integers(1, 4),
    quorum=st.integers(1, 6),
    min_group=st.integers(1, 4),
)


@given(paces, st.floats(0.001, 100), estimates)
def test_grace_is_clamped(pace: PaceSpec, step_seconds: float, known: GraceEstimates) -> None:
    round_seconds = pace.steps_per_version * step_seconds / pace.fragments
    grace = grace_seconds(pace, step_seconds, known)
    assert min(GRACE_SECONDS_MIN, round_seconds) <= grace <= round_seconds


@given(paces, st.floats(0.001, 100), seconds, seconds, seconds)
def test_slower_rounds_leave_less_grace(
    pace: PaceSpec, step_seconds: float, one: float, other: float, quorum_seconds: float
) -> None:
    fast, slow = sorted((one, other))
    assert grace_seconds(pace, step_seconds, GraceEstimates(quorum_seconds, slow)) <= grace_seconds(
        pace, step_seconds, GraceEstimates(quorum_seconds, fast)
    )


def test_grace_is_the_formula_of_the_design() -> None:
    pace = PACE.model_copy(update={"overlap": 2, "grace_share": 0.5, "steps_per_version": 24, "fragments": 8})
    known = GraceEstimates(quorum_seconds=1.0, sync_seconds=2.0)
    assert grace_seconds(pace, 1.0, known) == 0.5 * (2 * 3.0 - 1.0 - 2.0)


@given(st.lists(st.tuples(seconds, seconds), min_size=1))
def test_estimates_are_moving_averages(rounds: list[tuple[float, float]]) -> None:
    known = GraceEstimates()
    for quorum_seconds, sync_seconds in rounds:
        known = known.with_round(quorum_seconds, sync_seconds)
    assert known.quorum_seconds is not None
    assert min(q for q, _ in rounds) <= known.quorum_seconds * (1 + 1e-9) + 1e-9
    assert known.quorum_seconds <= max(q for q, _ in rounds) * (1 + 1e-9) + 1e-9
    following = known.with_round(known.quorum_seconds + 1, 0.0)
    assert following.quorum_seconds == pytest.approx(known.quorum_seconds + AVERAGE_WEIGHT)


ALL_JOINED = Gathered(
    joined=frozenset(PEERS[:4]),
    contributors=4,
    expected=frozenset(PEERS[:4]),
    active=frozenset(PEERS[:4]),
    grace_since=10.0,
    grace_seconds=2.0,
    minor_allowed=False,
)


@pytest.mark.parametrize(
    ("changes", "now", "closes", "reason"),
    [
        ({}, 0.0, True, "everyone live has joined"),
        ({"contributors": 1}, 20.0, False, "1 of at least 2 members"),
        ({"joined": frozenset(PEERS[:2])}, 20.0, False, "no more than 50% of the active set has joined"),
        ({"joined": frozenset(PEERS[:3])}, 9.0, False, "3 of 3 for the quorum"),
        ({"joined": frozenset(PEERS[:3])}, 11.5, False, "grace window open for 0.50 s more, 1 missing"),
        ({"joined": frozenset(PEERS[:3])}, 12.0, True, "grace window over, 1 missing"),
        ({"joined": frozenset(PEERS[:2]), "minor_allowed": True}, 12.0, True, "grace window over, 2 missing"),
        ({"joined": frozenset(PEERS[:2]), "minor_allowed": True}, 11.0, False, "grace window open for 1.00 s"),
    ],
)
def test_a_roster_closes_with_a_reason(changes: dict[str, object], now: float, closes: bool, reason: str) -> None:
    contributors = changes.pop("contributors", None) or len(changes.get("joined", ALL_JOINED.joined))  # type: ignore[arg-type]
    gathered = replace(ALL_JOINED, contributors=contributors, **changes)  # type: ignore[arg-type]
    closed, why = close_roster(gathered, PACE, now)
    assert (closed, why.startswith(reason)) == (closes, True), why


def test_a_full_group_waits_for_those_whose_turn_has_come_but_not_beyond_the_grace_window() -> None:
    many = frozenset(PeerId(f"peer {number}") for number in range(PEERS_PER_GROUP_MAX))
    gathered = replace(ALL_JOINED, joined=many | ALL_JOINED.active, contributors=40, expected=many | {PeerId("late")})
    end = gathered.grace_since + gathered.grace_seconds
    assert [close_roster(gathered, PACE, now)[0] for now in (end - 0.01, end)] == [False, True]


peer_sets = st.frozensets(st.sampled_from(PEERS))
gathereds = st.builds(
    lambda joined, witnesses, expected, active, since, grace, minor: Gathered(
        joined, len(joined - witnesses), expected, active, since, grace, minor
    ),
    peer_sets, peer_sets, peer_sets, peer_sets, st.floats(0, 20), st.floats(0, 20), st.booleans(),
)  # fmt: skip


@given(gathereds, paces, st.floats(0, 50), st.floats(0, 50))
def test_a_closed_roster_stays_closed(gathered: Gathered, pace: PaceSpec, now: float, later: float) -> None:
    if close_roster(gathered, pace, now)[0]:
        assert close_roster(gathered, pace, now + later)[0]


@given(gathereds, paces, st.floats(0, 50))
def test_a_roster_does_not_close_below_min_group_or_without_the_share(
    gathered: Gathered, pace: PaceSpec, now: float
) -> None:
    if close_roster(gathered, pace, now)[0]:
        assert gathered.contributors >= pace.min_group
        present = len(gathered.joined & gathered.active)
        assert gathered.minor_allowed or present > pace.min_share * len(gathered.active)


@given(gathereds, paces)
def test_every_roster_closes_in_the_end(gathered: Gathered, pace: PaceSpec) -> None:
    able = gathered.contributors >= pace.min_group
    present = len(gathered.joined & gathered.active) > pace.min_share * len(gathered.active)
    assert close_roster(gathered, pace, 41.0)[0] == (able and (present or gathered.minor_allowed))


@given(paces, st.integers(0, 40))
def test_the_quorum_is_never_smaller_than_a_group(pace: PaceSpec, active: int) -> None:
    assert pace.min_group <= quorum_size(pace, active) <= max(pace.quorum, pace.min_group)
