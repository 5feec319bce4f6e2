"""Owners whose steps are too long for the run's rounds are told: once in the log, and in the status while it is so."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from coordinator.run.manifest import PaceSpec
from coordinator.views.snapshot import PeerSnapshot
from peer.learner.messages import StepEntry, Steps
from peer.learner.work_counters import STEPS_TIMED_MIN, LearnerProgress
from peer.machine.pause_policy import Conditions
from peer.node.slow_steps import STEADY_SHARE, slow_advice, step_seconds_max, step_words, watch_steps
from peer.node.status import peer_snapshot
from peer.rounds.counters import RunCounters
from tests.peer.rounds.test_driver import Swarm, config_of
from tests.peer.virtual_loop import run_virtual

PACE = PaceSpec(round_seconds=8.0)
LONGEST_SECONDS = 1.6


class Reports:
    """The reports that a learner makes of its steps."""

    def __init__(self, first_step: int = 0) -> None:
        self.progress = LearnerProgress()
        self.progress.steps = self._step = first_step
        self._busy_seconds = self._now = 0.0

    def say(self, seconds_each: float, steps: int = 1, rest_seconds: float = 0.0, dropped: int = 0) -> float | None:
        """Report steps of this length, after each of which the learner rests; return the measured step time."""
        self._step += steps
        self._busy_seconds += steps * seconds_each
        self._now += steps * (seconds_each + rest_seconds)
        entries = tuple(
            StepEntry(step=number, loss=1.0, tokens=8)
            for number in range(self._step - steps + dropped + 1, self._step + 1)
        )
        self.progress.report(
            Steps(entries=entries, dropped=dropped, cpu_seconds=0.0, busy_seconds=self._busy_seconds), self._now
        )
        return self.progress.step_seconds


def test_a_step_takes_what_it_keeps_the_learner_busy() -> None:
    """The rest after a step does not count: what a round asks for is copied in that time."""
    learner = Reports(first_step=1000)
    assert [learner.say(0.5, steps=3, rest_seconds=10.0) for _ in range(STEPS_TIMED_MIN - 1)] == [None] * (
        STEPS_TIMED_MIN - 1
    )
    assert learner.say(0.5, rest_seconds=10.0) == pytest.approx(0.5)
    for _ in range(2):
        assert learner.say(0.5, steps=4, dropped=3) == pytest.approx(0.5)
        assert learner.say(60.0) == pytest.approx(0.5), "one step that something held up says nothing"
    for _ in range(20):
        learner.say(2.0)
    assert learner.progress.step_seconds == pytest.approx(2.0)


def test_nothing_is_said_of_a_learner_that_makes_no_steps() -> None:
    counters = RunCounters(1)
    watch_steps(None, PACE, counters)
    assert slow_advice(PACE, counters) == ""
    assert LearnerProgress().step_seconds is None


def test_the_log_says_it_once_and_the_status_as_long_as_it_is_so() -> None:
    counters = RunCounters(1)
    near = (STEADY_SHARE + 1) / 2 * LONGEST_SECONDS
    with capture_logs() as lines:
        for seconds in (1.0, LONGEST_SECONDS, near):
            watch_steps(seconds, PACE, counters)
            assert slow_advice(PACE, counters) == ""
        for seconds in (2.431, 3.0, near, 2.0):
            watch_steps(seconds, PACE, counters)
            advice = slow_advice(PACE, counters)
            assert step_words(seconds, PACE) in advice
            assert "Much of this machine's work may come too late to count; give" in advice
            assert "larger pace.round_seconds" in advice
        watch_steps(1.0, PACE, counters)
        assert slow_advice(PACE, counters) == ""
    assert [line["event"] for line in lines] == ["steps_too_long", "steps_in_time"]
    assert "a step takes 2.43 s here, and other peers wait only 1.6 s. Much" in lines[0]["advice"]
    assert {name: counters.events[name] for name in ("steps_too_long", "steps_in_time")} == {
        "steps_too_long": 1,
        "steps_in_time": 1,
    }


@given(st.floats(1e-3, 86400.0), st.floats(1.001, 1000.0))
def test_any_step_over_a_fifth_of_the_deadline_is_too_long(round_seconds: float, times: float) -> None:
    pace, counters = PaceSpec(round_seconds=round_seconds), RunCounters(1)
    assert step_seconds_max(pace) == pytest.approx(round_seconds / 5)
    watch_steps(step_seconds_max(pace) / times, pace, counters)
    assert counters.slow_step_seconds is None
    watch_steps(step_seconds_max(pace) * times, pace, counters)
    assert counters.slow_step_seconds is not None
    assert slow_advice(pace, counters).count("\n") == 0


def test_a_snapshot_says_it(tmp_path: Path) -> None:
    async def main() -> list[str]:
        swarm = Swarm(config_of(), 1, tmp_path)
        await swarm.start()
        driver, learner = swarm.peers[0].driver, Reports()
        base = PeerSnapshot(peer_id="me", run_id="", name="", role="learner", state="training", pid=0, wall_seconds=0.0)
        said = []
        for seconds in (1.0, 2.0):
            for _ in range(20):
                watch_steps(learner.say(seconds), driver.engine.core.pace, driver.counters)
            said.append(peer_snapshot(base, driver, learner.progress, Conditions(), driver.now).late)
        await swarm.close()
        return said

    in_time, late = run_virtual(main())
    assert in_time == ""
    assert late.startswith("a step takes 2 s here, and other peers wait only 1.6 s")
