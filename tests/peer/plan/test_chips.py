"""The machines of a planned run: their chips, and impossible numbers, which are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import UsageError
from peer.plan.chips import Cluster, ExponentiatedWeibull, Speeds, Sync, Timing

positive = st.floats(0.2, 5.0)


@given(positive, positive, positive, st.floats(0.001, 0.999))
def test_quantile_inverts_the_distribution(scale: float, shape: float, exponent: float, probability: float) -> None:
    delay = float(ExponentiatedWeibull(scale, shape, exponent).quantile(np.array([probability]))[0])
    assert (-math.expm1(-((delay / scale) ** shape))) ** exponent == pytest.approx(probability, rel=1e-6)


@pytest.mark.parametrize(
    ("shape", "exponent", "mean"), [(1.0, 1.0, 1.0), (1.0, 2.0, 1.5), (2.0, 1.0, math.sqrt(math.pi) / 2)]
)
def test_mean_where_it_is_known(shape: float, exponent: float, mean: float) -> None:
    assert ExponentiatedWeibull(10.0, shape, exponent).mean_seconds() == pytest.approx(10 * mean, rel=2e-3)


@given(positive, positive, positive)
def test_distribution_with_a_wanted_mean(mean: float, shape: float, exponent: float) -> None:
    assert ExponentiatedWeibull.with_mean(mean, shape, exponent).mean_seconds() == pytest.approx(mean)


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 4096))
def test_slices_share_all_chips(chips: int, learners: int, slice_chips: int) -> None:
    cluster = Cluster(max(chips, learners), learners, timing=Timing(slice_chips=slice_chips), mtbi_years=2.0)
    in_a_slice = cluster.chips / (cluster.learners * cluster.slices)
    assert cluster.slices >= 1
    assert cluster.failures_per_slice_second == pytest.approx(in_a_slice / (2 * 365.25 * 86_400))


def test_only_rigid_training_needs_every_slice() -> None:
    assert Cluster(4096, method="rigid").slices_needed == 4
    assert Cluster(4096, method="elastic").slices_needed == 1


def test_learner_is_as_slow_as_its_slowest_chip() -> None:
    rng = np.random.default_rng(0)
    alike = Cluster(1000, 2, speeds=Speeds(slowdowns=(1.5,)))
    assert alike.step_seconds(rng).tolist() == [15.0, 10.0]
    small, large = (
        Cluster(chips, 2, speeds=Speeds(chip_spread=0.1)).step_seconds(rng).mean() for chips in (10, 100_000)
    )
    assert 10 < small < large < 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: ExponentiatedWeibull(0.0, 1.0, 1.0),
        lambda: Timing(step_seconds=0),
        lambda: Timing(down_seconds=-1),
        lambda: Timing(slice_chips=0),
        lambda: Speeds(slowdowns=(0.0,)),
        lambda: Speeds(jitter=2.0),
        lambda: Sync(quorum=0),
        lambda: Sync(overlap_steps=-1),
        lambda: Sync(overlap_steps=1, grace_steps=1.5),
        lambda: Cluster(4, 5),
        lambda: Cluster(4, 0),
        lambda: Cluster(4, 2, "elastic"),
        lambda: Cluster(4, 2, "else"),  # type: ignore[arg-type]
        lambda: Cluster(4, 2, mtbi_years=math.nan),
        lambda: Cluster(4, 2, sync=Sync(quorum=3)),
        lambda: Cluster(4, 1, speeds=Speeds((1.0, 1.0))),
    ],
)
def test_impossible_numbers_are_the_users(make) -> None:
    with pytest.raises(UsageError):
        make()
