"""Options of a lab, and what follows from them before anything runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.attacks.zoo import AttackOrder
from peer.lab.baseline import REGROUP_STEPS, JointBatches, elastic_schedule, full_schedule
from peer.lab.data import dirichlet_texts, learner_texts
from peer.lab.faults import plan_absences
from peer.lab.options import (
    STEP_SECONDS,
    Failures,
    Scavenge,
    lab_config,
    parse_speeds,
    run_steps,
    sequences_per_step,
)
from tests.peer.lab import small


def test_changes_reach_the_run_and_wrong_ones_are_named() -> None:
    changes = {"outer.merge": "rda", "pace.fragments": 4, "seed": 7, "inner.learning_rate": None}
    config = lab_config(small.BASE, 4, 100, changes)
    assert (config.outer.merge, config.pace.fragments, config.seed) == ("rda", 4, 7)
    assert config.inner == small.BASE.inner
    assert config.versions == 100 * 4 / config.pace.steps_per_version
    with pytest.raises(UsageError, match=r"outer\.merge"):
        lab_config(small.BASE, 4, 100, {"outer.merge": "shuffle"})


def test_a_group_never_needs_more_than_there_are() -> None:
    base = RunConfig()
    assert lab_config(base, 1, 10, {}).pace.min_group == 1
    assert lab_config(base, 8, 10, {"pace.quorum": 1}).pace.min_group == 1
    assert lab_config(base, 8, 10, {}).pace.min_group == base.pace.min_group


@given(st.lists(st.floats(0.125, 8), min_size=1, max_size=6), st.integers(1, 12))
def test_the_lower_median_learner_makes_one_step_per_unit_of_time(speeds: list[float], learners: int) -> None:
    rates = small.options(learners, 10, speeds=tuple(speeds)).rates()
    ordered = sorted(rates, reverse=True)
    assert ordered[(learners - 1) // 2] == 1 / STEP_SECONDS
    for number, rate in enumerate(rates):
        assert rate / rates[0] == pytest.approx(speeds[number % len(speeds)] / speeds[0])


@pytest.mark.parametrize(
    "given",
    [
        {"speeds": (1.0, 0.0)},
        {"speeds": (1.0, float("inf"))},
        {"dirichlet_alpha": 0.0},
        {"adoption_delay_steps": 4.0},
        {"adoption_delay_steps": -1.0},
        {"attacks": (AttackOrder.parse("zero:3"),)},
        {"scavenge": Scavenge(40, 1, 2)},
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        small.options(3, 10, **given)
    with pytest.raises(UsageError):
        small.options(0, 10)
    with pytest.raises(UsageError):
        small.options(3, 0)


def test_options_on_the_command_line_are_parsed() -> None:
    assert Failures.parse("300:40") == Failures(300, 40)
    assert Scavenge.parse("4:100:500") == Scavenge(4, 100, 500)
    assert parse_speeds("octaves") == parse_speeds("1,2,4,8")
    assert sequences_per_step(RunConfig(), {}, 128 * 24) == 24
    for wrong in ("", "300", "a:b", "0:5", "0.5:5", "300:-1", "1:2:3"):
        with pytest.raises(UsageError):
            Failures.parse(wrong)
    for wrong in ("4:500:100", "1.5:1:2", "4:1"):
        with pytest.raises(UsageError):
            Scavenge.parse(wrong)
    with pytest.raises(UsageError):
        parse_speeds("fast")
    for tokens in (0, 100, 129):
        with pytest.raises(UsageError):
            sequences_per_step(RunConfig(), {}, tokens)


def test_a_batch_has_sequences_of_the_changed_length() -> None:
    assert sequences_per_step(RunConfig(), {"data.context_tokens": 64}, 512) == 8
    with pytest.raises(UsageError):
        sequences_per_step(RunConfig(), {"data.context_tokens": "many"}, 512)


def test_the_run_is_as_long_as_the_versions_that_are_set() -> None:
    base = RunConfig()
    whole = base.versions * base.pace.steps_per_version // base.pace.fragments
    assert run_steps(base, {}) == run_steps(base, {"pace.fragments": 4, "pace.steps_per_version": 16}) == whole
    changes = {"versions": 12, "pace.fragments": 4, "pace.steps_per_version": 16}
    assert run_steps(base, changes) == 12 * 16 / 4
    assert lab_config(base, 4, run_steps(base, changes), changes).versions == 12
    with pytest.raises(UsageError, match="versions"):
        run_steps(base, {"versions": "many"})


def test_absences_follow_the_seed_and_last_as_long_as_asked_for() -> None:
    plans = [plan_absences(small.options(6, 2000, {"seed": seed}, failures=Failures(200, 50))) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    lives = []
    for away in plans[0]:
        before = 0.0
        for begins, ends in away:
            assert ends == begins + 50
            lives.append(begins - before)
            before = ends
    assert sum(lives) / len(lives) == pytest.approx(200, rel=0.35)


def test_scavengers_are_away_outside_their_time() -> None:
    plan = plan_absences(small.options(2, 100, scavenge=Scavenge(1, 30, 60)))
    assert plan == ((), (), ((0.0, 30.0), (60.0, 100.0)))


def test_elastic_data_parallel_stands_still_after_every_change() -> None:
    absences = (((10.5, 20.0),), (), ())
    schedule = elastic_schedule(absences, 40)
    by_end = {step.ends: step.members for step in schedule}
    assert [end for end in range(1, 41) if end not in by_end] == [11, 12, 13, 21, 22, 23]
    assert REGROUP_STEPS == 3
    assert by_end[10] == by_end[24] == (0, 1, 2)
    assert by_end[14] == by_end[20] == (1, 2)
    assert elastic_schedule(((), ()), 5) == full_schedule(2, 5)
    assert elastic_schedule((((2.0, 4.0),), ((2.0, 4.0),)), 4)[-1].ends == 2  # nobody is left


def test_a_joint_batch_holds_every_members_next_window() -> None:
    lab_windows = [torch.arange(4).view(1, 4) + 10 * learner for learner in range(2)]

    class Source:
        def __init__(self, window: torch.Tensor) -> None:
            self.window = window

        def batch(self, window: int) -> torch.Tensor:
            return self.window + 100 * window

    schedule = elastic_schedule(((), ((1.0, 1.5),)), 7)
    joint = JointBatches([Source(window) for window in lab_windows], schedule)
    seen = [joint.batch(number)[:, 0].tolist() for number in range(len(schedule))]
    assert [step.members for step in schedule] == [(0, 1), (0, 1), (0, 1)]
    assert seen == [[0, 10], [100, 110], [200, 210]]


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_text_is_dealt_out_whole_and_the_more_evenly_the_larger_alpha(alpha: float) -> None:
    spec = DataSpec(context_tokens=16)
    texts = dirichlet_texts(spec, 4, alpha, seed=1)
    assert [text.numel() for text in texts] == [text.numel() for text in dirichlet_texts(spec, 4, alpha, seed=1)]
    total = sum(text.numel() for text in texts)
    assert total > 1_000_000
    largest = max(text.numel() for text in texts) / total
    assert largest < 0.3 if alpha == 100.0 else largest > 0.26


def test_attackers_read_everything_and_leave_the_honest_their_slices() -> None:
    train = torch.zeros(7, dtype=torch.uint8)
    config = small.options(3, 20).config
    alone = learner_texts(config, train, 3, 0.3)
    first, liar, second, third = learner_texts(config, train, 4, 0.3, hostile=range(1, 2))
    assert liar is train
    assert all(map(torch.equal, (first, second, third), alone))
