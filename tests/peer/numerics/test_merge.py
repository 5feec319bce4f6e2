from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.run.manifest import Merge
from peer.numerics.fragments import FragmentLayout, TensorSpec
from peer.numerics.merge import (
    CHUNK_ELEMENTS,
    MERGES,
    combine,
    direction_scale,
    lower_weighted_median,
    squared_norm,
    weight_shares,
    weighted_mean,
)
from peer.numerics.robust.rules import AGGREGATORS
from tests.peer.reference import reference_mean, reference_rda

torch.set_num_threads(1)
MATRIX = FragmentLayout(0, (TensorSpec("a", (4, 4)),))
weight_lists = st.lists(st.floats(0.01, 1e9), min_size=1, max_size=8)


def orthogonal(count: int, radius: float = 1.0) -> list[torch.Tensor]:
    return [radius * row for row in torch.eye(16)[:count]]


def test_rda_of_orthogonal_inputs_keeps_their_length_and_the_mean_does_not():
    """For orthogonal deltas of equal norm R, RDA has norm R, and the average R/√M."""
    vectors = orthogonal(4, radius=3.0)
    assert float(reference_rda(MATRIX, vectors, [1.0] * 4).norm()) == pytest.approx(3.0)
    assert float(reference_mean(vectors, [1.0] * 4).norm()) == pytest.approx(3.0 / math.sqrt(4))


def test_rda_of_one_input_is_that_input():
    """With M = K = 1, RDA is the plain delta."""
    vector = torch.randn(16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(reference_rda(MATRIX, [vector], [5.0]).float(), vector)


def test_rda_does_not_depend_on_the_scale_of_weights():
    """RDA does not change when all weights are scaled."""
    vectors = list(torch.randn(3, 16, generator=torch.Generator().manual_seed(2)))
    one, thousand = (reference_rda(MATRIX, vectors, [w, 2 * w, 3 * w]) for w in (1.0, 1000.0))
    torch.testing.assert_close(one, thousand)


def test_rda_weighs_norms_and_directions():
    vectors = orthogonal(2)
    merged = reference_rda(MATRIX, [vectors[0] * 4, vectors[1]], [3.0, 1.0])
    expected = (vectors[0] * 3 + vectors[1]) / math.sqrt(10) * (3 * 4 + 1) / 4
    torch.testing.assert_close(merged.float(), expected)


def test_embeddings_are_merged_by_mean():
    layout = FragmentLayout(0, (TensorSpec("e", (2, 4), embedding=True), TensorSpec("a", (2, 4))))
    vectors = orthogonal(2)
    merged = reference_rda(layout, [vectors[0], vectors[1]], [1.0, 1.0])
    torch.testing.assert_close(merged[:8], reference_mean(vectors, [1.0, 1.0])[:8])
    assert not MERGES["rda"].is_directional(layout.tensors[0])
    assert MERGES["rda"].is_directional(layout.tensors[1])
    assert not MERGES["mean"].is_directional(layout.tensors[1])


def test_zero_and_cancelling_inputs_are_finite():
    """Directions that cancel give a finite result."""
    vector = orthogonal(1)[0]
    assert not reference_rda(MATRIX, [vector, -vector], [1.0, 1.0]).any()
    assert not reference_rda(MATRIX, [vector * 0], [1.0]).any()
    half = reference_rda(MATRIX, [vector * 2, vector * 0], [1.0, 1.0])
    torch.testing.assert_close(half.float(), vector)


def test_every_rule_is_known_everywhere():
    assert tuple(MERGES) == get_args(Merge) == tuple(AGGREGATORS)
    assert all(rule.name == name for name, rule in MERGES.items())


def test_where_the_factor_is_zero_the_vector_is_not_looked_at():
    vectors = [torch.tensor([1.0, 2.0]), torch.tensor([float("nan"), 3.0])]
    factors = [[np.float32(2), np.float32(0)], [np.float32(0), np.float32(0.5)]]
    assert combine(vectors, factors, [slice(0, 1), slice(1, 2)]).tolist() == [2.0, 1.5]
    assert combine(vectors, [[np.float32(0)] * 2], [slice(0, 2)]).tolist() == [0.0, 0.0]


@given(weight_lists)
def test_shares_are_float32_and_sum_to_one(weights):
    shares = weight_shares(weights)
    assert sum(shares) == pytest.approx(1, abs=1e-6)
    assert all(share == float(np.float32(share)) for share in shares)


def test_no_weight_at_all_merges_to_nothing():
    assert weight_shares([0.0, 0.0]) == (0.0, 0.0)
    assert weighted_mean([1.0, 2.0], [0.0, 0.0]) == 0.0
    assert lower_weighted_median([1.0, 2.0], [0.0, 0.0]) == 0.0


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(1, 5)), min_size=1, max_size=9))
def test_the_weighted_median_is_the_lower_median_of_repeated_values(pairs):
    repeated = sorted(value for value, count in pairs for _ in range(count))
    found = lower_weighted_median([value for value, _ in pairs], [float(count) for _, count in pairs])
    assert found == repeated[(len(repeated) - 1) // 2]


def test_combine_adds_in_order_and_rounds_every_operation():
    elements = CHUNK_ELEMENTS + 100
    vectors = list(torch.randn(3, elements, generator=torch.Generator().manual_seed(4)))
    spans = [slice(0, 60), slice(60, elements)]
    factors = [[np.float32(x) for x in row] for row in ((0.1, 0.7, 0.2), (0.3, 0.3, 0.4))]
    merged = combine(vectors, factors, spans).numpy()
    a, b, c = (vector.numpy() for vector in vectors)
    for index in (0, 59, 60, CHUNK_ELEMENTS + 59, CHUNK_ELEMENTS + 60, elements - 1):
        x, y, z = factors[index >= 60]
        expected = np.float32(np.float32(x * a[index]) + np.float32(y * b[index]))
        assert merged[index] == np.float32(expected + np.float32(z * c[index]))


def test_a_direction_gets_its_length_and_rounding_noise_gets_none():
    assert direction_scale(3.0, 0.25) == np.float32(6)
    assert direction_scale(3.0, 0.0) == 0
    assert direction_scale(3.0, 1e-13) == 0
    assert direction_scale(3.0, 0.125, share=0.5) == np.float32(6)
    assert direction_scale(3.0, 0.125, share=0.0) == 0


@pytest.mark.parametrize("elements", [0, 1, 2, 3, 1000, CHUNK_ELEMENTS + 7])
def test_squared_norms_are_summed_in_float64(elements):
    vector = torch.randn(elements, generator=torch.Generator().manual_seed(5)) * 1e-4
    vector[:1] = 1e4
    assert squared_norm(vector) == pytest.approx(math.fsum(float(x) ** 2 for x in vector), rel=1e-14)


@pytest.mark.parametrize("elements", [1001, CHUNK_ELEMENTS, 2 * CHUNK_ELEMENTS + 1001])
def test_squared_norms_are_folded_in_the_published_order(elements):
    vector = torch.randn(elements, generator=torch.Generator().manual_seed(6))
    total = 0.0
    for chunk in vector.split(CHUNK_ELEMENTS):
        squares = [x * x for x in chunk.tolist()]
        while len(squares) > 1:
            half = (len(squares) + 1) // 2
            squares = [low + high for low, high in zip(squares, [*squares[half:], 0.0], strict=False)]
            squares = squares[:half]
        total += squares[0]
    assert squared_norm(vector) == total
