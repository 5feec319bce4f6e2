"""An input that points away from the merge of all loses its weight, and nothing else changes (docs/adr/0031)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peer.numerics.robust.centered_clip import centered_clip
from peer.numerics.robust.opposed import OPPOSED, discount_opposed, share_bounds

ELEMENTS = 64
ERROR = 0.25


def fan(cosines: list[float], seed: int = 0) -> np.ndarray:
    """Return unit vectors that have these cosines to one direction, and nothing else in common."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((ELEMENTS, len(cosines) + 1)))[0].T
    return np.stack([c * basis[0] + np.sqrt(1 - c**2) * own for c, own in zip(cosines, basis[1:], strict=True)])


def test_shares_stay_as_they_are_bit_for_bit_where_nobody_points_away() -> None:
    vectors = fan([0.9, 0.5, 0.7])
    shares = np.array([0.5, 0.3, 0.2])
    assert discount_opposed(shares, vectors @ vectors.T) is shares


def test_a_member_that_points_backwards_has_no_say_and_the_others_keep_their_proportions() -> None:
    vectors = fan([0.8, 0.8, 0.7, -0.8])
    left = discount_opposed(np.array([0.4, 0.2, 0.2, 0.2]), vectors @ vectors.T)
    assert left == pytest.approx([0.5, 0.25, 0.25, 0.0])


def test_agreeing_with_itself_helps_nobody() -> None:
    """The honest have cosines of 0.1; yet the two that point backwards have one of 0.17 with the merge of all."""
    vectors = fan([0.1**0.5] * 6 + [-(0.1**0.5)] * 2)
    shares = np.full(8, 1 / 8)
    merged = shares @ vectors
    assert (vectors[6:] @ merged > 0.1 * np.linalg.norm(merged)).all()
    left = discount_opposed(shares, vectors @ vectors.T)
    assert left[:6] == pytest.approx(left[0])
    assert (left[6:] < left[0] / 3).all()


def test_inputs_that_cancel_or_have_no_direction_lose_nothing() -> None:
    one = fan([0.5])[0]
    halves = np.array([0.5, 0.5])
    for vectors in (np.stack([one, -one]), np.zeros((2, ELEMENTS)), np.stack([one, 0 * one])):
        assert discount_opposed(halves, vectors @ vectors.T) is halves


@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=9),
    st.lists(st.floats(0.01, 1), min_size=9, max_size=9),
    st.floats(1e-6, 1e6),
)
def test_shares_are_shares_whatever_the_inputs(cosines: list[float], weights: list[float], scale: float) -> None:
    vectors = fan(cosines) * scale
    products = vectors @ vectors.T
    shares = np.array(weights[: len(cosines)]) / sum(weights[: len(cosines)])
    left = discount_opposed(shares, products)
    assert left.sum() == pytest.approx(1)
    assert (left >= 0).all()
    low, high = share_bounds(shares, products, ERROR)
    assert (low <= left + 1e-12).all()
    assert (left <= high + 1e-12).all()
    assert (high <= 1 + 1e-12).all()


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=9), st.integers(0, 99))
@example(cosines=[1.0, -0.5, -0.5], seed=0)  # all point away from the others: shares stay
def test_bounds_hold_what_a_sample_with_other_cosines_would_leave(cosines: list[float], seed: int) -> None:
    vectors = fan(cosines)
    noise = np.random.default_rng(seed).standard_normal(vectors.shape)
    sampled = vectors + 0.01 * noise
    shares = np.full(len(cosines), 1 / len(cosines))
    merged, moved = shares @ vectors, shares @ sampled
    if min(np.linalg.norm(merged), np.linalg.norm(moved)) < 0.2:
        return  # hardly anything in common, and no cosine with it to be told
    low, high = share_bounds(shares, sampled @ sampled.T, ERROR)
    left = discount_opposed(shares, vectors @ vectors.T)
    assert (low <= left + 1e-9).all()
    assert (left <= high + 1e-9).all()


def test_bounds_are_exact_where_no_cosine_is_near_the_ramp() -> None:
    vectors = fan([0.9, 0.9, 0.9, 0.9, -0.95])
    products, shares = vectors @ vectors.T, np.full(5, 0.2)
    low, high = share_bounds(shares, products, ERROR)
    assert OPPOSED - ERROR > -0.9
    assert low == pytest.approx(high)
    assert low == pytest.approx(discount_opposed(shares, products))


@given(
    st.integers(0, 10_000), st.integers(4, 16), st.floats(0.5, 0.95), st.lists(st.floats(-2, 2), min_size=4, max_size=4)
)
def test_fewer_than_a_third_cannot_silence_an_honest_member(
    seed: int, members: int, cosine: float, aims: list[float]
) -> None:
    """The honest have a cosine of a half or more with each other; the hostile agree on one vector, knowing them all."""
    draw = np.random.default_rng(seed)
    hostile = (members - 1) // 3
    honest = fan([cosine**0.5] * (members - hostile), seed)
    mean = honest.mean(0) / np.linalg.norm(honest.mean(0))
    lie = aims[0] * mean + aims[1] * honest[0] + aims[2] * honest[1] + aims[3] * draw.standard_normal(ELEMENTS) / 8
    vectors = np.concatenate([honest, np.tile(lie / max(np.linalg.norm(lie), 1e-9), (hostile, 1))])
    products = vectors @ vectors.T
    weights = np.full(members, 1 / members)
    shares = centered_clip(products, weights)[0]
    left = discount_opposed(shares, products)
    assert (left >= shares - 1e-12)[: members - hostile].all()
