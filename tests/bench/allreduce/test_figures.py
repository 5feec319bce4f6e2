from __future__ import annotations

import os

import pytest
import torch

from tests.bench.allreduce.figures import Round, phase_medians, ratios, span, summary
from tests.bench.allreduce.gradients import elements_of, likeness, model_of, outer_gradient, true_mean
from tests.bench.soak.memory import family_cpu_seconds

OURS = [Round(0.1, 1.0, 4.0), Round(0.2, 2.0, 2.0), Round(0.9, 1.5, 3.0)]
THEIRS = [Round(0.5, 2.0, 3.0), Round(0.5, 4.0, 3.0), Round(0.5, 3.0, 3.0)]


def test_a_round_lasts_from_the_first_to_begin_to_the_last_to_end() -> None:
    assert span([{"began": 2.0, "ended": 3.0}, {"began": 1.5, "ended": 2.5}], "began", "ended") == 1.5


def test_figures_are_medians() -> None:
    found = summary(OURS)
    assert (found["rounds"], found["seconds"], found["seconds_range"]) == (3, 1.5, [1.0, 2.0])
    assert (found["gathering_seconds"], found["whole_seconds"], found["cpu_seconds"]) == (0.2, 2.2, 3.0)


def test_ratios_are_of_medians_and_ours_is_above() -> None:
    assert ratios(OURS, THEIRS) == {"seconds": 0.5, "whole_seconds": 0.629, "cpu_seconds": 1.0}


def test_a_phase_that_a_peer_passed_in_no_time_counts_as_none() -> None:
    answers = [{"phases": {"join": 1.0, "encode": 2.0}}, {"phases": {"encode": 4.0}}, {"phases": {"encode": 3.0}}]
    assert phase_medians(answers) == {"join": 0.0, "encode": 3.0}


def test_the_model_has_about_the_parameters_asked_for() -> None:
    for parameters in (100_000, 1_000_000, 10_000_000):
        assert elements_of(model_of(parameters)) == pytest.approx(parameters, rel=1e-3)


def test_the_mean_is_that_of_all_gradients() -> None:
    mean = true_mean(1000, 3)
    assert torch.allclose(mean, sum(outer_gradient(1000, number) for number in range(3)) / 3)
    found = likeness(1.1 * mean, mean)
    assert found["cosine"] == pytest.approx(1.0)
    assert found["relative_error"] == pytest.approx(0.1)


def test_descendants_count() -> None:
    assert 0 < family_cpu_seconds([os.getpid()]) <= family_cpu_seconds([os.getppid()])
