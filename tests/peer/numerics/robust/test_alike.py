"""Inputs that agree beyond what all have in common lose weight, and nothing else changes (docs/adr/0071)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.numerics.robust.alike import ALIKE, discount_alike, factor_bounds
from peer.numerics.robust.centered_clip import centered_clip
from tests.peer.numerics.robust.test_opposed import fan

ELEMENTS = 64


def equal(members: int) -> np.ndarray:
    return np.full(members, 1 / members)


def kept(vectors: np.ndarray) -> np.ndarray:
    """Return what remains of equal shares, as multiples of the first row's."""
    weights = equal(len(vectors))
    left = discount_alike(weights, vectors @ vectors.T, weights)
    assert left.sum() == pytest.approx(1)
    return left / left[0]


@pytest.mark.parametrize("cosine", [0.0, 0.1, 0.5, 0.9])
def test_shares_stay_as_they_are_bit_for_bit_where_rests_point_every_way(cosine: float) -> None:
    vectors = fan([cosine**0.5] * 8)
    weights = equal(8)
    assert discount_alike(weights, vectors @ vectors.T, weights) is weights


@pytest.mark.parametrize("cosine", [0.0, 0.1, 0.5])
def test_two_that_send_the_same_keep_a_sixteenth_each(cosine: float) -> None:
    vectors = fan([cosine**0.5] * 8)
    vectors[7] = vectors[6]
    assert kept(vectors) == pytest.approx([1.0] * 6 + [1 / 16] * 2)


def test_the_origin_of_the_products_is_of_no_account() -> None:
    vectors = fan([0.3] * 8)
    vectors[7] = vectors[6]
    away = vectors - vectors[2]
    assert kept(away) == pytest.approx(kept(vectors))


def test_less_alike_keeps_more() -> None:
    vectors = fan([0.0] * 12)
    lies = [np.sqrt(0.6) * vectors[10] + np.sqrt(0.4) * own for own in vectors[8:10]]
    left = kept(np.concatenate([vectors[:6], lies]))
    assert left[:6] == pytest.approx([1.0] * 6)
    mean = np.concatenate([vectors[:6], lies]).mean(0)
    rests = [lie - mean for lie in lies]
    cosine = rests[0] @ rests[1] / (rests[0] @ rests[0])
    assert 0.4 < cosine < 0.5
    assert left[6:] == pytest.approx([(0.25 / cosine) ** 2] * 2)


def test_where_most_have_one_as_near_nobody_loses() -> None:
    """With four kinds of data and two members each, pairs that agree are usual."""
    kinds, own = fan([0.0] * 4, 1), fan([0.0] * 8, 2)
    vectors = np.sqrt(0.6) * np.repeat(kinds, 2, axis=0) + np.sqrt(0.4) * own
    assert kept(vectors) == pytest.approx([1.0] * 8, rel=0.2)


def test_three_have_no_colluders_and_equal_inputs_no_rests() -> None:
    three = fan([0.3] * 3)
    three[2] = three[1]
    for vectors in (three, np.repeat(three[:1], 8, axis=0), np.zeros((8, ELEMENTS))):
        weights = equal(len(vectors))
        assert discount_alike(weights, vectors @ vectors.T, weights) is weights


@given(
    st.integers(0, 10_000),
    st.integers(4, 16),
    st.floats(0.02, 0.95),
    st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.floats(0, 1),
)
def test_fewer_than_a_third_bring_no_honest_two_together(
    seed: int, members: int, cosine: float, aims: list[float], common: float
) -> None:
    """Whatever they aim at, and however much of it they have in common."""
    draw = np.random.default_rng(seed)
    hostile = (members - 1) // 3
    honest = fan([cosine**0.5] * (members - hostile), seed)
    aim = aims[0] * honest.mean(0) + aims[1] * honest[0] + aims[2] * draw.standard_normal(ELEMENTS) / 8
    lies = common * aim + (1 - common) * draw.standard_normal((hostile, ELEMENTS)) / 8
    lies /= np.maximum(np.linalg.norm(lies, axis=1, keepdims=True), 1e-9)
    vectors, weights = np.concatenate([honest, lies]), equal(members)
    products = vectors @ vectors.T
    shares = centered_clip(products, weights)[0]
    left = discount_alike(shares, products, weights)
    assert left[: members - hostile].sum() >= shares[: members - hostile].sum() - 1e-9


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=9),
    st.lists(st.floats(0.01, 1), min_size=9, max_size=9),
    st.floats(1e-6, 1e6),
    st.floats(0, 0.25),
)
def test_shares_are_shares_whatever_the_inputs(
    cosines: list[float], weights: list[float], scale: float, error: float
) -> None:
    vectors = fan(cosines) * scale
    vectors[-1] = vectors[0]
    products, shares = vectors @ vectors.T, np.array(weights[: len(cosines)]) / sum(weights[: len(cosines)])
    left = discount_alike(shares, products, shares)
    assert left.sum() == pytest.approx(1)
    assert (left > 0).all()
    least, most = factor_bounds(shares, products, shares, error)
    assert (least <= 1 + 1e-12).all()
    assert (most >= 1 - 1e-12).all()


@given(st.floats(0.1, 0.9), st.integers(0, 99))
def test_slack_holds_what_a_sample_with_other_cosines_would_leave(cosine: float, seed: int) -> None:
    vectors = fan([cosine**0.5] * 8, seed)
    vectors[7] = 0.7 * vectors[6] + 0.7 * vectors[7]
    sampled = vectors + 0.005 * np.random.default_rng(seed).standard_normal(vectors.shape)
    weights = equal(8)
    seen, whole = (discount_alike(weights, rows @ rows.T, weights) for rows in (sampled, vectors))
    least, most = factor_bounds(weights, sampled @ sampled.T, weights, ALIKE)
    ratio = (whole / whole[0]) / (seen / seen[0])
    assert (least - 1e-9 <= ratio).all()
    assert (ratio <= most + 1e-9).all()


def test_a_copy_of_little_weight_takes_little_from_the_one_that_it_copies() -> None:
    vectors = fan([0.3] * 8)
    vectors[7] = vectors[6]
    weights = np.array([1.0] * 7 + [0.1]) / 7.1
    left = discount_alike(weights, vectors @ vectors.T, weights) / weights
    assert left[6:] / left[0] == pytest.approx([1 - 0.1 * 15 / 16, 1 / 16])
