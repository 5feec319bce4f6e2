"""The fit of gaps by size, and the steps that data-parallel training needs for a loss."""

from __future__ import annotations

import pytest

from tests.quality.trend import PowerLaw, steps_to


def test_a_fit_finds_the_law_that_its_gaps_follow():
    law = PowerLaw.fitted({size: 0.05 * size**-0.5 for size in (0.1, 0.4, 1.6)})
    assert law.factor == pytest.approx(0.05)
    assert law.exponent == pytest.approx(0.5)
    assert law.at(100) == pytest.approx(0.005)


def test_steps_lie_between_two_runs_in_logarithms():
    losses = {100: 2.0, 400: 1.0}
    assert steps_to(2**0.5, losses) == pytest.approx(200)
    assert steps_to(2.0, losses) == pytest.approx(100)
    assert steps_to(1.0, losses) == pytest.approx(400)


@pytest.mark.parametrize("loss", [2.1, 0.9])
def test_a_loss_that_no_two_runs_enclose_has_no_steps(loss: float):
    assert steps_to(loss, {100: 2.0, 400: 1.0}) is None
