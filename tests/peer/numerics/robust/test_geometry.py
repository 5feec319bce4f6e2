"""Weighted medians of numbers, and inner products with what is computed from them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.numerics.robust.centered_clip import clip_coefficients
from peer.numerics.robust.gram import BLOCK_ELEMENTS, centred_products, distances_to, inner_products, squared_distances
from peer.numerics.robust.medians import FEW_VALUES, weighted_median, weighted_trimmed_mean
from peer.numerics.robust.selection import krum_order, nearest_mixing, tolerated
from tests.peer.numerics.robust.reference import median_of, trimmed_mean_of

torch.set_num_threads(1)
quick = settings(max_examples=50, deadline=None)
numbers = st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=32)


def rows(seed: int, members: int, elements: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return list(generator.standard_normal((members, elements)).astype(np.float32))


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ([3], [2], 3),
        ([1, 5], [1, 1], 3),
        ([1, 5], [1, 1.1], 5),
        ([1, 2, 9], [1, 1, 1], 2),
        ([1, 2, 9], [1, 1, 2], 5.5),
        ([1, 4, 9], [1, 0, 1], 5),
        ([9, 1, 2, 4], [0.1, 0.1, 0.1, 0.1], 3),
        ([0, 1, 2], [0.1 + 0.2, 0.2, 0.1], 0.5),  # 0.3 and what 0.2 + 0.1 makes of it
    ],
)
def test_median_of_numbers(values, weights, expected) -> None:
    assert weighted_median(np.array(values), np.array(weights, np.float64)) == expected


@quick
@given(numbers)
def test_order_statistics_are_their_definitions(pairs) -> None:
    values, weights = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    byzantine = (len(values) - 1) // 2
    trimmed = weighted_trimmed_mean(values, weights, byzantine / len(values))
    assert weighted_median(values, weights) == median_of(values, weights)
    assert trimmed == pytest.approx(trimmed_mean_of(values, weights, byzantine), abs=1e-9)


@quick
@given(numbers, st.floats(0.25, 10))
def test_a_median_of_few_has_the_bits_of_one_among_many(pairs, scale: float) -> None:
    """MinorityBranch values are looked at one by one, many as an array."""
    values, weights = (np.array(column, np.float64) * scale for column in zip(*pairs, strict=True))
    many = np.tile(values, (FEW_VALUES + 1, 1))
    assert weighted_median(many, weights).tolist() == [float(weighted_median(values, weights))] * len(many)


def test_equal_values_are_summed_in_roster_order() -> None:
    """Quantised inputs have many ties, and their weights must be added in the same order on every machine."""
    generator = np.random.default_rng(3)
    values = generator.integers(-2, 3, (500, 31)).astype(np.float32)
    weights = generator.uniform(0.1, 1.0, 31)
    for row, found in zip(values, weighted_trimmed_mean(values, weights, 0.3), strict=True):
        order = sorted(range(31), key=lambda member: row[member])
        cumulative = list(accumulate(weights[member] for member in order))
        low, high = cumulative[-1] * 0.3, cumulative[-1] * (1 - 0.3)
        inner = [low, *(min(max(reached, low), high) for reached in cumulative)]
        mass = total = 0.0
        for member, (before, after) in zip(order, pairwise(inner), strict=True):
            mass += after - before
            total += (after - before) * float(row[member])
        assert found == total / mass


def test_order_statistics_run_along_the_last_axis() -> None:
    stack = np.array(rows(1, 3, 5))
    weights = np.array([1.0, 2.0, 1.0, 1.0, 3.0])
    assert weighted_median(stack, weights).tolist() == [median_of(row, weights) for row in stack]


@pytest.mark.parametrize("elements", [1, 7, BLOCK_ELEMENTS, 2 * BLOCK_ELEMENTS + 3])
def test_inner_products_are_the_dot_products(elements: int) -> None:
    arrays = rows(2, 5, elements)
    exact = np.array(arrays, np.float64)
    np.testing.assert_allclose(inner_products(arrays), exact @ exact.T, atol=1e-5 * elements**0.5 + 1e-6 * elements)
    scales = np.array([1.0, 0.5, 0.0, 2.0, 3.0])
    moved = exact * scales[:, None] - exact[3] * 2
    np.testing.assert_allclose(
        inner_products(arrays, scales, 3), moved @ moved.T, atol=1e-4 * elements**0.5 + 1e-5 * elements
    )


@pytest.mark.parametrize("offset", [0.0, 10.0, 1000.0])
def test_distances_survive_a_common_offset_and_a_far_member(offset: float) -> None:
    arrays = [row + np.float32(offset) for row in rows(3, 6, 3000)]
    arrays[0] = arrays[0] * np.float32(1e9)
    weights = np.full(6, 1 / 6)
    exact = np.array(arrays, np.float64)
    products = centred_products(arrays, inner_products(arrays), np.ones(6), weights)
    expected = ((exact[:, None] - exact) ** 2).sum(2)
    np.testing.assert_allclose(squared_distances(products), expected, rtol=1e-4)
    shares = np.array([1e-9, 0.2, 0.2, 0.2, 0.3, 0.1 - 1e-9])
    distances = np.linalg.norm(exact - shares @ exact, axis=1)
    np.testing.assert_allclose(distances_to(products, shares), distances, rtol=1e-4)


def test_clipped_shares() -> None:
    shares = clip_coefficients(np.array([1.0, 1.0, 2.0]), np.array([0.0, 2.0, 8.0]), 2.0)
    np.testing.assert_allclose(shares, np.array([1, 1, 0.5]) / 2.5)


def test_krum_prefers_the_middle_of_the_crowd() -> None:
    line = np.array([0.0, 1.0, 2.0, 3.5, 50.0])
    assert krum_order((line[:, None] - line) ** 2, 1)[0] == 1
    assert krum_order((line[:, None] - line) ** 2, 1)[-1] == 4


def test_mixing_takes_the_nearest_up_to_the_kept_weight() -> None:
    line = np.array([0.0, 1.0, 10.0])
    mixing = nearest_mixing((line[:, None] - line) ** 2, np.array([0.25, 0.5, 0.25]), 0.5)
    np.testing.assert_allclose(mixing, [[0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5]])


def test_fewer_than_a_third_are_tolerated() -> None:
    assert [tolerated(members) for members in (1, 2, 3, 4, 6, 7, 8, 9, 10, 16, 32)] == [
        0,
        0,
        0,
        1,
        1,
        2,
        2,
        2,
        3,
        5,
        10,
    ]
