"""Steps of uneven lengths: a function of time alone, with the requested mean and spread."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.simulator.tensors import VirtualLearner
from dht.identity import PeerId
from peer.lab.options import Failures
from peer.lab.uneven import UnevenLearner
from tests.peer.lab import small


def learner(jitter: float = 0.1, seed: int = 0, life: int = 1, rate: float = 0.125) -> UnevenLearner:
    steady = VirtualLearner(PeerId("someone"), rate, 32, 16.0, 5.0, [0, 0], [(5, life)])
    return UnevenLearner.of(steady, jitter, seed)


@pytest.mark.parametrize("jitter", [0.1, 1.0])
def test_steps_take_a_step_on_average_and_differ_as_much_as_asked_for(jitter: float) -> None:
    uneven = learner(jitter)
    lengths = [after - before for before, after in pairwise(map(uneven.made_at, range(5, 40_005)))]
    assert mean(lengths) == pytest.approx(8.0, rel=0.02)
    assert stdev(lengths) == pytest.approx(8.0 * jitter, rel=0.05)


@given(st.lists(st.floats(16.0, 2000.0), min_size=1, max_size=20), st.floats(0.0, 1.0), st.sampled_from([0.1, 0.125]))
def test_steps_are_a_function_of_time_whatever_was_asked_before(times: list[float], jitter: float, rate: float) -> None:
    asked, fresh = learner(jitter, rate=rate), learner(jitter, rate=rate)
    found = [asked.steps(now) for now in times]
    assert sorted(found) == [fresh.steps(now) for now in sorted(times)]
    for now, steps in zip(times, found, strict=True):
        assert asked.made_at(steps) - 1e-9 <= now < asked.made_at(steps + 1)
        assert now + asked.boundary_in(now) == pytest.approx(asked.made_at(steps + 1))
        assert asked.steps(asked.made_at(steps)) == steps


def test_every_life_and_seed_draws_its_own_lengths() -> None:
    firsts = {learner(seed=seed, life=life).made_at(6) for seed in (0, 1) for life in (1, 2)}
    assert len(firsts) == 4


def test_at_rest_no_step_is_made() -> None:
    uneven = learner()
    made = uneven.steps(1000.0)
    uneven.rest(1000.0)
    assert uneven.steps(5000.0) == made > 100
    assert uneven.boundary_in(5000.0) == 0.0


@pytest.mark.slow
def test_learners_get_apart_and_the_swarm_goes_on() -> None:
    """(DiLoCo 2604.21428 Table 5: variance) A seed gives the same run, also with deaths; without jitter another."""
    given = {"late_joins": True, "failures": Failures(40, 6)}
    first, second, even = (
        small.run(small.options(4, 60, {"seed": 3}, speed_jitter=jitter, **given)) for jitter in (0.2, 0.2, 0.0)
    )
    assert small.final_parameters(first[0]) == small.final_parameters(second[0])
    assert small.final_parameters(first[0]) != small.final_parameters(even[0])
    assert first[1].events["died"] >= 2
    assert first[1].agreement
    assert first[1].versions_certified > 0.8 * even[1].versions_certified, "with the same deaths"
    made = {one.lazy.steps for one in first[0].context.active.values()}
    assert len(made) > 1
