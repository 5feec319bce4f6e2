"""The median voter sets the pace (design §6.2 step 1)."""

from __future__ import annotations

import math
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.context import Core
from coordinator.group.pacing import MINOR_INTERVALS, Tempo
from coordinator.group.schedule import (
    SPACING_SHARE,
    Candidate,
    VoterPace,
    due_time,
    interval_seconds,
    median_rate,
    median_time,
    next_to_open,
    spacing_seconds,
    steps_needed,
)
from coordinator.wire.presence import State
from tests.coordinator.rigs import PACE, PEERS, certificate, chain_of, core, presence

voters = st.lists(
    st.builds(VoterPace, st.floats(0, 100), st.floats(0, 10), st.sampled_from([0.0, 0.1, 1.0, 7.0])), max_size=9
)


def test_the_first_cycle_is_spread_over_one_interval() -> None:
    pace = PACE.model_copy(update={"fragments": 8, "steps_per_version": 24})
    assert [steps_needed(pace, fragment, 0) for fragment in range(8)] == [3, 6, 9, 12, 15, 18, 21, 24]
    assert [steps_needed(pace, fragment, 1) for fragment in range(8)] == [24] * 8


@given(voters, st.floats(0, 200))
def test_the_median_is_the_lower_one(paces: list[VoterPace], steps: float) -> None:
    expected = median_low([pace.reaches(steps) for pace in paces]) if paces else math.inf
    assert median_time(paces, steps) == expected


@given(voters, st.floats(0, 200))
def test_one_straggler_never_delays_three(paces: list[VoterPace], steps: float) -> None:
    even = [VoterPace(0, 0, 1.0)] * 3
    assert median_time([*even, VoterPace(0, 0, 0.0)], steps) == median_time(even, steps)


@given(voters, st.floats(1, 200), st.integers(1, 9), st.floats(0, 100))
def test_a_round_is_due_with_the_median_or_with_a_patient_quorum(
    paces: list[VoterPace], steps: float, quorum: int, patience_until: float
) -> None:
    due = due_time(paces, steps, quorum, patience_until)
    assert due <= median_time(paces, steps)
    if due < median_time(paces, steps):
        assert due >= patience_until
        assert sum(pace.reaches(steps) <= due for pace in paces) >= quorum


def test_a_swarm_of_which_most_stand_still_goes_on_with_a_quorum() -> None:
    paces = [VoterPace(0, 0, 1.0)] * 2 + [VoterPace(0, 0, 0.0)] * 5
    assert median_time(paces, 6) == math.inf
    assert due_time(paces, 6, 2, 18.0) == 18.0
    assert due_time(paces, 6, 3, 18.0) == math.inf


def test_a_few_fast_peers_do_not_set_the_pace() -> None:
    paces = [VoterPace(0, 0, 100.0)] * 2 + [VoterPace(0, 0, 1.0)] * 3
    assert due_time(paces, 6, 2, 18.0) == 6.0


def test_openings_keep_their_distance() -> None:
    pace = PACE.model_copy(update={"fragments": 8, "steps_per_version": 24})
    paces = [VoterPace(0, 0, rate) for rate in (0.1, 2.0, 2.0)]
    rate = median_rate(paces)
    assert spacing_seconds(pace, rate) == SPACING_SHARE * 24 / (8 * 2.0)
    assert interval_seconds(pace, rate) == 12.0
    still = median_rate([])
    assert (spacing_seconds(pace, still), interval_seconds(pace, still)) == (0.0, pace.round_seconds)
    assert median_rate([VoterPace(0, 0, 0.0), VoterPace(0, 0, 3.0)]) == 3.0


@given(st.lists(st.builds(Candidate, st.integers(0, 7), st.integers(0, 3), st.floats(0, 20)), max_size=8))
def test_the_lowest_version_then_the_lowest_index_opens(candidates: list[Candidate]) -> None:
    chosen = next_to_open(candidates, 10.0)
    due = [candidate for candidate in candidates if candidate.due_at <= 10.0]
    assert (chosen is None) == (not due)
    if chosen is not None:
        assert all((chosen.version, chosen.fragment) <= (one.version, one.fragment) for one in due)


def seen_by(own: Core, others: dict[int, tuple[State, int, float]]) -> None:
    for number, (state, steps, rate) in others.items():
        own.presence.see(PEERS[number], presence(state, steps, rate), 0.0)


def test_at_first_everybody_who_trains_counts_with_all_its_steps() -> None:
    own = core()
    own.steps_per_second = 1.0
    seen_by(own, {1: ("training", 4, 1.0), 2: ("training", 0, 1.0), 3: ("hosting", 0, 0.0), 9: ("paused", 0, 0.0)})
    tempo = Tempo(own, 0.0, 0.0)
    assert tempo.pacing(chain_of(own), 0.0).due_at == 6.0
    assert not tempo.minor_allowed(chain_of(own), 1e9)


def test_later_only_the_active_set_counts_and_its_steps_since_the_last_version() -> None:
    own, chain = core(), chain_of(core())
    chain.append(certificate(chain, PEERS[:4]))
    own.steps_per_second = 1.0
    seen_by(
        own, {1: ("training", 90, 1.0), 2: ("training", 90, 0.1), 7: ("training", 90, 50.0), 8: ("training", 9, 50)}
    )
    tempo = Tempo(own, certified_at=100.0, counted_from=100.0)
    assert tempo.pacing(chain, 100.0).due_at == 106.0


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_a_slow_peer_expects_the_interval_of_the_median(rate: float) -> None:
    """Else it would long refuse the minor group that the others may form (design §6.3)."""
    own, chain = core(), chain_of(core())
    chain.append(certificate(chain, PEERS[:4]))
    own.steps_per_second = rate
    seen_by(own, dict.fromkeys((1, 2, 3), ("training", 0, 1.0)))
    tempo = Tempo(own, certified_at=100.0, counted_from=100.0)
    assert not tempo.minor_allowed(chain, 100.0 + 6 * MINOR_INTERVALS - 0.1)
    assert tempo.minor_allowed(chain, 100.0 + 6 * MINOR_INTERVALS)


def test_a_new_report_changes_what_is_due() -> None:
    own, chain = core(), chain_of(core())
    tempo = Tempo(own, 0.0, 0.0)
    assert tempo.pacing(chain, 0.0).due_at == math.inf
    own.steps, own.steps_seen, own.steps_per_second = 2, 1.0, 2.0
    assert tempo.pacing(chain, 1.0).due_at == 3.0
    own.presence.see(PEERS[1], presence("training", 6, 1.0), 2.0)
    assert tempo.pacing(chain, 2.0).due_at == 2.0
