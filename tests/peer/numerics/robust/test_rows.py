"""RDA with one length per row: the formula, and how far a minority can move it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.numerics.fragments import FragmentLayout, TensorSpec
from peer.numerics.robust.rows import merge_rows
from tests.peer.numerics.robust.stacks import Sample, sample
from tests.peer.reference import reference_rda

torch.set_num_threads(1)
ROWS, COLUMNS = 12, 20


def lengths(vector: torch.Tensor) -> np.ndarray:
    return np.linalg.norm(vector.numpy().reshape(ROWS, COLUMNS).astype(np.float64), axis=1)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 9))
def test_rda_by_row_is_rda_of_every_row(seed: int, members: int) -> None:
    given_rows = sample(seed, members, ROWS * COLUMNS, far=(members - 1) // 3)
    layout = FragmentLayout(0, tuple(TensorSpec(f"row {row:02}", (COLUMNS,)) for row in range(ROWS)))
    expected = reference_rda(layout, given_rows.vectors, given_rows.weights)
    found = merge_rows("rda", given_rows.vectors, given_rows.weights, COLUMNS).vector
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * given_rows.size)


@pytest.mark.parametrize("rule", ["rda", "robust_rda"])
def test_one_member_is_the_result(rule: str) -> None:
    [vector] = sample(1, 1, ROWS * COLUMNS).vectors
    torch.testing.assert_close(merge_rows(rule, [vector], [3.0], COLUMNS).vector, vector)


def test_robust_rows_have_the_median_length() -> None:
    given_rows = sample(2, 7, ROWS * COLUMNS, far=2, equal_weights=True)
    found = merge_rows("robust_rda", given_rows.vectors, given_rows.weights, COLUMNS)
    median = np.median([lengths(vector) for vector in given_rows.vectors], axis=0)
    np.testing.assert_allclose(lengths(found.vector), median, rtol=1e-5)
    assert found.coefficients is None


def test_two_of_eight_stay_within_the_honest_spread() -> None:
    given_rows = sample(3, 8, ROWS * COLUMNS, far=2, equal_weights=True)
    honest = given_rows.vectors[2:]
    wanted = merge_rows("rda", honest, [1.0] * 6, COLUMNS).vector
    spread = np.sqrt(np.mean([float((vector - wanted).norm()) ** 2 for vector in honest]))
    robust, plain = (
        float((merge_rows(rule, given_rows.vectors, given_rows.weights, COLUMNS).vector - wanted).norm())
        for rule in ("robust_rda", "rda")
    )
    assert robust < 0.7 * spread < 2 * spread < plain


@pytest.mark.parametrize("rule", ["rda", "robust_rda"])
def test_rows_that_are_zero_or_cancel_become_zero(rule: str) -> None:
    given_rows = sample(4, 4, ROWS * COLUMNS, equal_weights=True)
    values = given_rows.values.reshape(4, ROWS, COLUMNS)
    values[:, 0] = 0
    values[1], values[3] = values[0], values[2]
    values[:2, 1], values[2:, 1] = values[0, 1], -values[0, 1]
    found = merge_rows(rule, Sample(given_rows.values, []).vectors, [1.0] * 4, COLUMNS).vector
    assert torch.isfinite(found).all()
    assert not found[:COLUMNS].any()
    if rule == "rda":
        assert not found[COLUMNS : 2 * COLUMNS].any()
    assert (lengths(found)[2:] > 0).all()


@pytest.mark.parametrize("rule", ["rda", "robust_rda"])
def test_values_that_are_not_finite_are_refused(rule: str) -> None:
    given_rows = sample(5, 4, ROWS * COLUMNS)
    given_rows.values[2, 50] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        merge_rows(rule, given_rows.vectors, given_rows.weights, COLUMNS)
