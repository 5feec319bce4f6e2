"""The rules as a reducer runs them: on a segment, the overlap of its partition with a tensor, given only whole norms.

Norms of whole tensors come from the signed commitments, so every member derives the same lengths, scales and factors
from them (design §7). A rule that is robust on every segment is as robust on the whole, so each segment has its own
coefficients. A reducer merges unit vectors or shortened ones. The length of a merged direction needs all segments, so
members set it: `tensor_radius`, then `peer.numerics.merge.direction_scale`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from peer.numerics.merge import MERGES, NORM_MIN, MergeRule, weighted_mean
from peer.numerics.robust.gram import inner_products
from peer.numerics.robust.medians import weighted_median
from peer.numerics.robust.plugin_rule import merge_with_plugin
from peer.numerics.robust.rows import merge_rows
from peer.numerics.robust.rules import AGGREGATORS, clip_scales, mean, robust_shares, unit_scales
from peer.numerics.robust.stack import Aggregate, Floats, Stack, finite_sum

BY_COORDINATE = frozenset({"median", "trimmed_mean"})
"""Built-in rules whose result at an element follows from the inputs there and their weights alone."""


@dataclass(frozen=True, slots=True)
class TensorInputs:
    """The values of one tensor that are certain before any of its bytes: per member its committed norm and its weight.

    `row_elements` is 0 unless the tensor is merged row by row (`MergeRule.has_rows`).
    """

    norms: tuple[float, ...]
    weights: tuple[float, ...]
    embedding: bool
    row_elements: int = 0


def is_directional(rule: str, embedding: bool) -> bool:
    """Whether members must set the length of a tensor's merged segments."""
    return MERGES[rule].directional and not embedding


def is_by_coordinate(rule: MergeRule) -> bool:
    """Whether the result at some elements follows from the inputs at these elements alone."""
    return rule.function is not None or rule.name in BY_COORDINATE


def merge_segment(
    rule: MergeRule, pieces: Sequence[Tensor], inputs: TensorInputs, out: Tensor | None = None
) -> Aggregate:
    """Merge float32[k] pieces of one tensor, one per member of `inputs`, by this rule.

    If there are coefficients, they are to be published, and the vector equals `peer.numerics.merge.combine` of the
    pieces with their `segment_factors`, bit for bit. A rule may write to `out`, float32[k]. Raises ValueError as the
    rules do, RuleError as plugins' rules do.
    """
    name = rule.name
    if rule.function is not None:
        return merge_with_plugin(rule.function, pieces, inputs.weights)
    if inputs.row_elements:
        return merge_rows(name, pieces, inputs.weights, inputs.row_elements)
    if name == "robust_rda":
        return _robust(pieces, inputs, out)
    if not is_directional(name, inputs.embedding):
        return (mean if name == "rda" else AGGREGATORS[name])(pieces, inputs.weights)
    stack = Stack.of(pieces, inputs.weights)
    return _combined(name, pieces, stack.spread(stack.weights), inputs, out=out)


def segment_factors(rule: str, coefficients: Sequence[float], inputs: TensorInputs) -> list[np.float32]:
    """Return the factor of each member's elements, from published coefficients and committed norms alone.

    `robust_rda` and `rda` merge unit vectors: coefficient over norm, 0 without a direction. `robust_rda` merges
    shortened embeddings: coefficient × min(1, 1.25 × median/norm). All others: the coefficient.
    """
    if is_directional(rule, inputs.embedding):
        pairs = zip(coefficients, inputs.norms, strict=True)
        return [np.float32(share / norm if norm >= NORM_MIN else 0.0) for share, norm in pairs]
    if rule == "robust_rda":
        scales = clip_scales(np.array(inputs.norms), np.array(inputs.weights))
        return [np.float32(share * scale) for share, scale in zip(coefficients, scales, strict=True)]
    return [np.float32(share) for share in coefficients]


def tensor_radius(rule: str, inputs: TensorInputs) -> float:
    """Return the length for a merged direction: the weighted median of the norms, for `rda` their weighted mean."""
    if rule == "rda":
        return weighted_mean(inputs.norms, inputs.weights)
    return float(weighted_median(np.array(inputs.norms), np.array(inputs.weights)))


def _robust(pieces: Sequence[Tensor], inputs: TensorInputs, out: Tensor | None) -> Aggregate:
    stack = Stack.of(pieces, inputs.weights)
    scales = tensor_scales("robust_rda", inputs)[list(stack.places)]
    shares, radius = robust_shares(stack, inner_products(stack.arrays()), scales, not inputs.embedding)
    return _combined("robust_rda", pieces, stack.spread(shares), inputs, radius, out)


def tensor_scales(rule: str, inputs: TensorInputs) -> Floats:
    """Return the factor of each input before the rule is applied: 1 unless the rule is `robust_rda`."""
    norms = np.array(inputs.norms)
    if rule != "robust_rda":
        return np.ones(len(norms))
    return clip_scales(norms, np.array(inputs.weights)) if inputs.embedding else unit_scales(norms)


def _combined(
    rule: str,
    pieces: Sequence[Tensor],
    coefficients: tuple[float, ...],
    inputs: TensorInputs,
    radius: float | None = None,
    out: Tensor | None = None,
) -> Aggregate:
    factors = segment_factors(rule, coefficients, inputs)
    return Aggregate(finite_sum(pieces, factors, out), coefficients, radius)
