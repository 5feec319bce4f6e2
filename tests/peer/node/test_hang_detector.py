"""A learner that stops making steps is detected; one that should make none, or never made any, is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from dht.errors import LocalError
from peer.node.hang_detector import (
    FIRST_STEPS_SECONDS,
    HANGS_MAX,
    HANGS_SECONDS,
    LOOK_SECONDS,
    LOOK_SECONDS_MAX,
    PATIENCE_SECONDS,
    HangDetector,
    hang_advice,
    note_hang,
    note_step,
    patience_seconds,
)
from peer.rounds.counters import RunCounters


class Looks:
    """A hang detector that looks at a fake learner again and again."""

    def __init__(self) -> None:
        self.standstill = HangDetector()
        self.now = 1000.0
        self.steps = 0

    def pass_by(
        self, seconds: float, step_seconds: float | None = 0.3, steps: bool = False, wanted: bool = True
    ) -> float:
        """Let time pass; return the seconds until the learner is found to hang, or all of the time if it is not."""
        since, until = self.now, self.now + seconds
        while self.now < until:
            self.now += LOOK_SECONDS
            self.steps += steps
            if self.standstill.look(self.steps if wanted else None, step_seconds, self.now):
                break
        return self.now - since


@pytest.mark.parametrize(("step_seconds", "patience"), [(0.01, 30.0), (3.0, 30.0), (9.0, 90.0)])
def test_a_learner_that_makes_no_steps_hangs(step_seconds: float, patience: float) -> None:
    learner = Looks()
    learner.pass_by(100.0, step_seconds, steps=True)
    assert learner.pass_by(10_000.0, step_seconds) == pytest.approx(patience, abs=1.5 * LOOK_SECONDS)
    assert learner.pass_by(10_000.0, step_seconds) == pytest.approx(patience, abs=2.5 * LOOK_SECONDS), "and again"


def test_the_first_steps_may_take_long() -> None:
    learner = Looks()
    assert learner.pass_by(FIRST_STEPS_SECONDS - 2, step_seconds=None) >= FIRST_STEPS_SECONDS - 2
    assert learner.pass_by(10.0, step_seconds=None) < 10.0


def test_a_learner_does_not_hang_while_it_rests_or_begins_again() -> None:
    learner = Looks()
    for _ in range(5):
        assert learner.pass_by(3600.0, wanted=False) == 3600.0
        assert learner.pass_by(PATIENCE_SECONDS - 2) == PATIENCE_SECONDS - 2


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=5))
def test_a_machine_that_sleeps_has_not_seen_its_learner_stand_still(naps_seconds: list[float]) -> None:
    learner = Looks()
    for nap_seconds in naps_seconds:
        learner.pass_by(3.0, steps=True)
        learner.now += nap_seconds
        rest = PATIENCE_SECONDS - LOOK_SECONDS_MAX - 2
        assert round(learner.pass_by(rest)) >= rest


def test_any_sign_of_life_will_do() -> None:
    learner = Looks()
    for _ in range(20):
        learner.steps += 1
        assert learner.pass_by(PATIENCE_SECONDS - 2) == PATIENCE_SECONDS - 2


def test_a_learner_that_hangs_again_and_again_is_given_up() -> None:
    rarely, often = Looks(), Looks()
    for _ in range(2 * HANGS_MAX):
        rarely.pass_by(HANGS_SECONDS)
        rarely.pass_by(HANGS_SECONDS, steps=True)
        rarely.standstill.check_hope()
    for _ in range(HANGS_MAX - 1):
        often.pass_by(HANGS_SECONDS)
        often.standstill.check_hope()
    often.pass_by(HANGS_SECONDS)
    with pytest.raises(LocalError, match="3 times within 60 minutes"):
        often.standstill.check_hope()


def test_the_owner_is_told_until_it_makes_steps() -> None:
    counters = RunCounters(1)
    assert hang_advice(counters) == ""
    with capture_logs() as lines:
        note_step(counters)
        note_hang(31.4, counters)
        assert hang_advice(counters).startswith("the learner made no step for 31 s, so it is started again")
        note_step(counters)
        note_step(counters)
    assert hang_advice(counters) == ""
    assert counters.events["learner_hangs"] == 1
    assert [line["event"] for line in lines] == ["learner_hangs", "learner_goes_on"]


@given(st.floats(0.0, 1e5))
def test_patience_is_ten_steps_and_half_a_minute_at_least(step_seconds: float) -> None:
    assert patience_seconds(step_seconds) == max(30.0, 10 * step_seconds)
