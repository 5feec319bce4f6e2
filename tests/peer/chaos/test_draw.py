"""Drawn faults: the same for the same seed, at the right rate, never too many at once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from peer.chaos.draw import draw_plan, plan_of
from peer.chaos.plan import ChaosPlanFile, Plan, Repeated

seeds = st.integers(0, 2**32)
KILLS = ChaosPlanFile(kills=Repeated(every_seconds=40.0, for_seconds=15.0))


def away_at_most(plan: Plan) -> int:
    """Return the most peers that are killed, stopped or have wrong clocks at any moment."""
    spans = [
        (one.at_seconds or 0.0, (one.at_seconds or 0.0) + one.for_seconds)
        for one in plan.events
        if one.do in ("kill", "stop", "clock_skew") and one.for_seconds is not None
    ]
    return max((sum(start <= moment < end for start, end in spans) for moment, _ in spans), default=0)


@given(seeds, st.integers(1, 12), st.floats(0.2, 40))
def test_a_drawn_plan_fits_and_leaves_enough_peers(seed: int, peers: int, minutes: float) -> None:
    plan = draw_plan(seed, peers, minutes)
    assert plan == draw_plan(seed, peers, minutes)
    assert away_at_most(plan) <= max(1, (peers - 1) // 3)
    assert all((one.at_seconds or 0.0) + (one.for_seconds or 0.0) < plan.seconds for one in plan.events)
    assert [one.name for one in plan.events].count("host_kill") == 1
    assert [one.name for one in plan.events].count("attacker") == (peers > 3)  # fewer than a third, as ever


@given(seeds)
def test_kills_come_as_often_as_the_file_says(seed: int) -> None:
    hours = 6
    plan = plan_of(KILLS, 32, 60 * hours, seed)
    expected = hours * 3600 / 40
    assert abs(len(plan.events) - expected) < 6 * expected**0.5  # six standard deviations of a Poisson count


@given(seeds, seeds)
def test_the_seed_of_the_command_line_wins_over_the_files(seed: int, other: int) -> None:
    file = KILLS.model_copy(update={"seed": other})
    assert plan_of(file, 6, 30.0, seed) == plan_of(KILLS, 6, 30.0, seed)
    assert plan_of(file, 6, 30.0) == plan_of(KILLS, 6, 30.0, other)


@given(seeds)
def test_a_peer_is_not_hit_while_away(seed: int) -> None:
    plan = draw_plan(seed, 6, 20.0)
    for number in range(1, 7):
        hits = [one for one in plan.events if one.peer == number and one.do in ("kill", "stop", "clock_skew")]
        for before, after in pairwise(hits):
            assert (before.at_seconds or 0.0) + (before.for_seconds or 0.0) <= (after.at_seconds or 0.0)
