"""The pace of inner steps, with a test's clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.learner.loop import next_step_at


@given(st.lists(st.floats(0.0, 0.4), min_size=50, max_size=200))
def test_steps_that_begin_late_do_not_make_the_pace_slower(latenesses: list[float]) -> None:
    due = first = 10.0
    for lateness in latenesses:
        began = due + lateness
        due = next_step_at(due, began, began + 0.05, 0.5, 1.0)
    assert due - first == pytest.approx(0.5 * len(latenesses))


@given(st.floats(0.5, 1e6))
def test_a_learner_that_was_away_makes_up_for_nothing(away_seconds: float) -> None:
    began = 10.0 + away_seconds
    assert next_step_at(10.0, began, began + 0.1, 0.5, 1.0) == began + 0.5


def test_steps_that_take_longer_than_the_pace_follow_one_another() -> None:
    assert next_step_at(10.0, 10.0, 13.0, 0.5, 1.0) == 13.0
    assert next_step_at(0.0, 10.0, 13.0, 0.0, 1.0) == 13.0


def test_a_share_of_the_time_bounds_steps_whatever_the_pace() -> None:
    assert next_step_at(10.0, 10.0, 11.0, 0.5, 0.25) == 14.0
    assert next_step_at(10.0, 10.0, 11.0, 9.0, 0.25) == 19.0
