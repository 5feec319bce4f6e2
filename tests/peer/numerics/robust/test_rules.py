from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from peer.numerics.robust.centered_clip import clip_coefficients
from peer.numerics.robust.rules import (
    centered_clip,
    geometric_median,
    krum,
    median,
    nnm_trimmed_mean,
    robust_rda,
    trimmed_mean,
)
from peer.numerics.robust.stack import combination
from tests.peer.numerics.robust.reference import REFERENCES
from tests.peer.numerics.robust.stacks import ABOUT_ORIGIN, COMBINATIONS, RULES, Sample, sample, samples, tensors

torch.set_num_threads(1)
every_rule = pytest.mark.parametrize("name", RULES)
few = settings(max_examples=12, deadline=None)


def merge(name: str, given: Sample) -> np.ndarray:
    return RULES[name](given.vectors, given.weights).vector.numpy()


def assert_near(found: np.ndarray, expected: np.ndarray, size: float, tolerance: float = 2e-5) -> None:
    assert np.linalg.norm(found.astype(np.float64) - expected) <= tolerance * size


@every_rule
@pytest.mark.parametrize(("members", "far"), [(2, 0), (3, 0), (5, 1), (8, 2), (16, 5)])
def test_rule_is_its_definition(name: str, members: int, far: int) -> None:
    for equal in (False, True):
        given = sample(members, members, 30, far, equal)
        expected = REFERENCES[name](given.values.astype(np.float64), np.array(given.weights))
        assert_near(merge(name, given), expected, given.size)


@pytest.mark.parametrize("name", ["centered_clip", "geometric_median"])
def test_far_away_and_close_together_costs_no_digits(name: str) -> None:
    given = sample(1, 8, 30, equal_weights=True)
    honest = given.values[2:] * np.float32(1e-3) + np.float32(100)
    hostile = np.full((2, 30), 1e12, np.float32)
    values = np.concatenate([hostile, honest])
    found = RULES[name](tensors(values), given.weights).vector.numpy()
    expected = REFERENCES[name](values.astype(np.float64), np.ones(8))
    spread = np.linalg.norm(honest - honest.mean(0), axis=1).mean()
    assert np.linalg.norm(found - expected) < 0.1 * spread  # float32 itself holds 100 to 0.2 % of the spread


@every_rule
def test_coefficients_say_how_the_result_came_about(name: str) -> None:
    given = sample(3, 9, 100, 2)
    merged = RULES[name](given.vectors, given.weights)
    if name not in COMBINATIONS:
        assert merged.coefficients is None
        return
    assert merged.coefficients is not None
    total = np.zeros(100, np.float32)
    for place, row in enumerate(given.values):
        coefficient = np.float32(merged.coefficients[place])
        assert float(coefficient) == merged.coefficients[place]
        if coefficient != 0:
            total = total + coefficient * row
    assert merged.vector.numpy().tobytes() == total.tobytes()
    assert torch.equal(combination(given.vectors, merged.coefficients), merged.vector)


@every_rule
def test_one_member_is_returned_as_it_is(name: str) -> None:
    given = sample(4, 1, 17)
    assert np.array_equal(merge(name, given), given.values[0])


@every_rule
@pytest.mark.parametrize("members", [2, 3, 4, 7, 8, 31, 32])
def test_equal_inputs_are_returned(name: str, members: int) -> None:
    given = sample(members, members, 9)
    equal = Sample(np.repeat(given.values[:1], members, axis=0), given.weights)
    assert_near(merge(name, equal), equal.values[0], equal.size, 1e-6)


@every_rule
@pytest.mark.parametrize("elements", [1, 2, 9000])
def test_any_group_and_any_length_merges(name: str, elements: int) -> None:
    for members in range(1, 33) if elements < 9000 else (5,):
        given = sample(members, members, elements)
        merged = merge(name, given)
        assert merged.shape == (elements,)
        assert np.isfinite(merged).all()
        assert np.linalg.norm(merged) <= 1.01 * np.linalg.norm(given.values, axis=1).max()


@every_rule
@few
@given(samples(3), st.randoms(use_true_random=False))
def test_order_does_not_matter(name: str, given: Sample, random) -> None:
    assume("krum" not in name or len(given.values) >= 5)  # with one neighbour two members always share the best score
    order = random.sample(range(len(given.values)), len(given.values))
    other = Sample(given.values[order], [given.weights[place] for place in order])
    assert_near(merge(name, other), merge(name, given), given.size)


@pytest.mark.parametrize("name", [name for name in RULES if name not in ABOUT_ORIGIN])
@few
@given(samples(3), st.floats(-50, 50))
def test_translation_moves_the_result(name: str, given: Sample, offset: float) -> None:
    assume("krum" not in name or len(given.values) >= 5)
    moved = Sample(given.values + np.float32(offset), given.weights)
    assert_near(merge(name, moved), merge(name, given) + offset, given.size, 1e-3)


@every_rule
@few
@given(samples(3), st.sampled_from([1e-6, 1e-3, 0.37, -1.0, 7.0, 1e6]), st.sampled_from([1e-9, 3.0, 1e9]))
def test_scale_of_inputs_scales_and_scale_of_weights_does_nothing(name, given: Sample, scale, weight_scale) -> None:
    assume("krum" not in name or len(given.values) >= 5)
    scaled = Sample(given.values * np.float32(scale), [weight * weight_scale for weight in given.weights])
    assert_near(merge(name, scaled), merge(name, given) * scale, given.size * abs(scale))


@pytest.mark.parametrize("name", ["mean", "rda", "centered_clip", "geometric_median", "median"])
@few
@given(samples(3, 12), st.data())
def test_weight_k_is_k_copies(name: str, given: Sample, data) -> None:
    copies = data.draw(st.lists(st.integers(1, 3), min_size=len(given.values), max_size=len(given.values)))
    weighted = Sample(given.values, [float(count) for count in copies])
    copied = Sample(np.repeat(given.values, copies, axis=0), [1.0] * sum(copies))
    assert_near(merge(name, weighted), merge(name, copied), given.size)


@pytest.mark.parametrize("rule", [trimmed_mean, nnm_trimmed_mean])
def test_weight_k_is_k_copies_where_as_large_a_part_is_trimmed(rule) -> None:
    given = sample(5, 6, 12, 1)
    copies = [3, 1, 2, 1, 3, 2]
    weighted = rule(given.vectors, [float(count) for count in copies], 1).vector
    copied = rule(tensors(np.repeat(given.values, copies, axis=0)), [1.0] * 12, 2).vector
    assert_near(weighted.numpy(), copied.numpy(), given.size)


@every_rule
def test_weight_zero_leaves_a_member_out(name: str) -> None:
    given = sample(6, 7, 20)
    alone = RULES[name](given.vectors, given.weights)
    beside = [*given.vectors[:3], torch.full((20,), float("nan")), *given.vectors[3:]]
    merged = RULES[name](beside, [*given.weights[:3], 0.0, *given.weights[3:]])
    assert torch.equal(merged.vector, alone.vector)
    if merged.coefficients is not None:
        assert merged.coefficients[3] == 0


@every_rule
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("members", [1, 8])
def test_values_that_are_not_finite_are_refused(name: str, poison: float, members: int) -> None:
    given = sample(7, members, 9000)
    vectors = given.vectors
    vectors[members // 2][8500] = poison
    with pytest.raises(ValueError, match="not finite"):
        RULES[name](vectors, given.weights)


@every_rule
def test_vectors_that_are_no_stack_are_refused(name: str) -> None:
    rule, row = RULES[name], torch.ones(4)
    for vectors in ([], [row, torch.ones(5)], [row, row.double()], [torch.ones(2, 2)], [torch.ones(0)]):
        with pytest.raises(ValueError, match="vectors"):
            rule(vectors, [1.0] * len(vectors))
    for weights in ([1.0], [1.0, -1.0], [1.0, float("nan")], [0.0, 0.0], [1e308, 1e308]):
        with pytest.raises(ValueError, match="weight"):
            rule([row, row], weights)


@pytest.mark.parametrize("rule", [krum, trimmed_mean, nnm_trimmed_mean])
def test_no_rule_stands_half(rule) -> None:
    given = sample(8, 4, 5)
    with pytest.raises(ValueError, match="no rule stands"):
        rule(given.vectors, given.weights, 2)


def test_a_length_that_would_overflow_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        robust_rda([torch.ones(3), torch.full((3,), 1e30)], [1.0, 1.0])


@few
@given(samples(3, 16), st.floats(-1e6, 1e6))
def test_median_stays_between_honest_members_whatever_copies_the_others_send(given: Sample, value: float) -> None:
    hostile = (len(given.values) - 1) // 2
    honest = given.values[hostile:]
    for sent in (np.full(honest.shape[1], value), honest[0], honest[0] * 1000):
        values = np.concatenate([np.repeat(sent[None], hostile, axis=0), honest])
        merged = median(tensors(values), [1.0] * len(values)).vector.numpy()
        assert (merged >= honest.min(0)).all()
        assert (merged <= honest.max(0)).all()


@few
@given(samples(4, 16), st.floats(2, 1e6))
def test_length_of_a_hostile_member_changes_nothing(given: Sample, factor: float) -> None:
    values = given.values.copy()
    values[0] *= 30 / np.linalg.norm(values[0]) * given.size  # already beyond the median
    longer = values.copy()
    longer[0] *= np.float32(factor)
    weights = [1.0] * len(values)
    once, twice = (robust_rda(tensors(rows), weights).vector.numpy() for rows in (values, longer))
    assert_near(once, twice, given.size)


@few
@given(samples(3), st.floats(1, 1e9))
def test_a_majority_in_one_point_is_the_result(given: Sample, distance: float) -> None:
    values = given.values.copy()
    same = len(values) // 2 + 1
    values[:same] = values[0]
    values[same:] *= np.float32(distance)
    for name in ("centered_clip", "geometric_median", "median", "robust_rda"):
        merged = RULES[name](tensors(values), [1.0] * len(values)).vector.numpy()
        expected = values[0]
        assert_near(merged, expected, float(np.linalg.norm(expected)), 1e-5)


def test_published_coefficients_follow_the_rule() -> None:
    given = sample(9, 12, 5000, 3)
    merged = centered_clip(given.vectors, given.weights)
    assert merged.coefficients is not None
    assert merged.clipping_radius is not None
    distances = np.linalg.norm(given.values.astype(np.float64) - merged.vector.numpy(), axis=1)
    rule = clip_coefficients(np.array(given.weights), distances, merged.clipping_radius)
    np.testing.assert_allclose(merged.coefficients, rule, rtol=1e-4)
    assert sum(merged.coefficients[:3]) < 0.1  # the far ones


def test_geometric_median_balances_unit_pulls() -> None:
    given = sample(10, 9, 50, 2)
    away = given.values - geometric_median(given.vectors, given.weights).vector.numpy()
    pulls = np.array(given.weights)[:, None] * away / np.linalg.norm(away, axis=1)[:, None]
    assert np.linalg.norm(pulls.sum(0)) < 1e-4


def test_directions_that_cancel_give_nothing() -> None:
    row = sample(11, 1, 10).vectors[0]
    for name in ("rda", "robust_rda"):
        assert not RULES[name]([row, -row], [1.0, 1.0]).vector.any()
        assert not RULES[name]([row * 0, row * 0], [1.0, 1.0]).vector.any()


def test_every_rule_has_a_reference() -> None:
    assert set(RULES) == set(REFERENCES)
