from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from peer.numerics.merge import MERGES, combine, direction_scale, squared_norm, weight_shares
from peer.numerics.robust.rules import AGGREGATORS, rda, robust_embedding, robust_rda
from peer.numerics.robust.segments import TensorInputs, is_directional, merge_segment, segment_factors, tensor_radius
from tests.peer.numerics.robust.stacks import Sample, sample, tensors

torch.set_num_threads(1)
CUTS = (0, 1, 40, 41, 700, 1000)


def inputs_of(given: Sample, embedding: bool = False) -> TensorInputs:
    norms = tuple(squared_norm(vector) ** 0.5 for vector in given.vectors)
    return TensorInputs(norms, tuple(given.weights), embedding)


def pieces_of(given: Sample, start: int, stop: int) -> list[torch.Tensor]:
    return [vector[start:stop] for vector in given.vectors]


def put_together(rule: str, given: Sample, inputs: TensorInputs, cuts=CUTS) -> torch.Tensor:
    """Return the tensor that members put together from segments merged by different reducers."""
    merged = torch.cat([merge_segment(MERGES[rule], pieces_of(given, *cut), inputs).vector for cut in pairwise(cuts)])
    if is_directional(rule, inputs.embedding):
        merged = merged * float(direction_scale(tensor_radius(rule, inputs), squared_norm(merged)))
    return merged


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("embedding", [False, True])
def test_one_segment_is_the_whole_rule(name: str, embedding: bool) -> None:
    given = sample(1, 8, 1000, 2)
    whole = {"rda": "mean"}.get(name, name) if embedding else name
    rule = robust_embedding if embedding and name == "robust_rda" else AGGREGATORS[whole]
    expected = rule(given.vectors, given.weights).vector
    found = put_together(name, given, inputs_of(given, embedding), (0, 1000))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("embedding", [False, True])
def test_published_coefficients_and_norms_give_any_element_bit_for_bit(name: str, embedding: bool) -> None:
    given = sample(2, 6, 1000, 1)
    inputs = inputs_of(given, embedding)
    merged = merge_segment(MERGES[name], pieces_of(given, 100, 900), inputs)
    if merged.coefficients is None:
        return
    factors = segment_factors(name, merged.coefficients, inputs)
    leaf = combine(pieces_of(given, 300, 450), [factors], [slice(0, 150)])
    assert leaf.numpy().tobytes() == merged.vector[200:350].numpy().tobytes()


def test_rda_is_what_plain_reducers_compute() -> None:
    given = sample(3, 5, 1000)
    inputs = inputs_of(given)
    merged = merge_segment(MERGES["rda"], pieces_of(given, 0, 500), inputs)
    shares = weight_shares(given.weights)
    assert merged.coefficients == shares
    assert segment_factors("rda", shares, inputs) == [
        np.float32(share / norm) for share, norm in zip(shares, inputs.norms, strict=True)
    ]
    torch.testing.assert_close(
        put_together("rda", given, inputs), rda(given.vectors, given.weights).vector, rtol=1e-4, atol=1e-5
    )


def test_segments_together_come_to_nearly_the_whole_rule() -> None:
    given = sample(4, 9, 4000)
    whole = robust_rda(given.vectors, given.weights).vector
    cut = put_together("robust_rda", given, inputs_of(given), (0, 1000, 1500, 4000))
    assert float((whole - cut).norm() / whole.norm()) < 0.05
    assert float(cut.norm()) == pytest.approx(float(whole.norm()), rel=1e-5)


@pytest.mark.parametrize("embedding", [False, True])
def test_cutting_a_tensor_keeps_the_bound_where_all_hostile_length_is_in_one_segment(embedding: bool) -> None:
    """The bound κ holds for the whole if it holds for the parts."""
    honest = sample(5, 6, 1000, equal_weights=True).values
    hostile = np.zeros((2, 1000), np.float32)
    hostile[:, 40:60] = -1000
    given = Sample(np.concatenate([hostile, honest]), [1.0] * 8)
    inputs = inputs_of(given, embedding)
    merged = torch.cat(
        [
            merge_segment(MERGES["robust_rda"], pieces_of(given, *cut), inputs).vector
            for cut in ((0, 40), (40, 80), (80, 1000))
        ]
    )
    rows = honest if embedding else honest / np.linalg.norm(honest, axis=1, keepdims=True)
    spread = ((rows - rows.mean(0)) ** 2).sum() / 6
    assert float(((merged.numpy() - rows.mean(0)) ** 2).sum()) <= 0.5 * spread


def test_members_without_length_or_weight() -> None:
    given = sample(6, 5, 100)
    given.values[1] = 0
    given.weights[3] = 0.0
    for embedding in (False, True):
        inputs = inputs_of(given, embedding)
        merged = merge_segment(MERGES["robust_rda"], given.vectors, inputs)
        assert merged.coefficients is not None
        assert merged.coefficients[3] == 0
        assert torch.isfinite(merged.vector).all()
        assert not merge_segment(
            MERGES["robust_rda"], tensors(given.values * 0), inputs_of(Sample(given.values * 0, given.weights))
        ).vector.any()
    assert segment_factors("robust_rda", merged.coefficients, inputs_of(given))[1] == 0


def test_factors_are_shares_over_norms() -> None:
    norms, weights = (4.0, 0.0, 1e-300, 1.0), (1.0, 1.0, 1.0, 1.0)
    plain, embedding = TensorInputs(norms, weights, False), TensorInputs(norms, weights, True)
    assert segment_factors("rda", (0.5, 0.5, 0.5, 0.25), plain) == [np.float32(x) for x in (0.125, 0, 0, 0.25)]
    assert segment_factors("rda", (0.5,) * 4, embedding) == [np.float32(0.5)] * 4
    assert segment_factors("mean", (0.5,) * 4, plain) == [np.float32(0.5)] * 4


def test_a_huge_member_does_not_lengthen_a_tensor() -> None:
    inputs = TensorInputs((1.0, 2.0, 3.0, 1e9), (1.0, 1.0, 1.0, 1.0), False)
    assert tensor_radius("robust_rda", inputs) == 2.5
    assert tensor_radius("rda", inputs) > 1e8


def test_values_that_are_not_finite_are_refused() -> None:
    given = sample(7, 4, 100)
    inputs = inputs_of(given)
    given.values[2, 50] = np.inf
    for name in AGGREGATORS:
        with pytest.raises(ValueError, match="not finite"):
            merge_segment(MERGES[name], given.vectors, inputs)
