"""Whether published coefficients are those of their rule, judged by the leaves that one voter has opened (design §7).

A reducer forms its coefficients from whole segments; a voter sees a sample of the same elements of every input, which
no member can lie about (docs/adr/0008). It runs the rule on the sample and compares. Where the rule's coefficients
follow from weights alone, they must be these, exactly; where they follow from distances, sampling leaves a tolerance,
so what is found here never convicts anybody: it only has a partition reduced once more, if many find it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from peer.merge import weight_shares
from peer.robust import centered_clip as clipping
from peer.robust.gram import centred_products, inner_products
from peer.robust.opposed import bounds
from peer.robust.segments import TensorInputs, tensor_scales
from peer.robust.selection import tolerated
from peer.robust.stack import Singles

ELEMENTS_MIN = 512  # of a segment: a smaller sample says too little about distances
EXCESS_MAX = (
    0.4  # of a member's weight, by which its coefficient may differ from the sample's; see docs/verification.md
)
COSINE_ERRORS = 8.0  # over √elements: how far a sample's cosine may be off; 7.2 was the most seen, 0.7 the median
COSINE_ERROR_MAX = 0.25  # reached below a thousand elements
SUM_TOLERANCE = 1e-3  # published coefficients are rounded to float32

BY_DISTANCE = frozenset({"robust_rda", "centered_clip", "geometric_median"})
BY_WEIGHT = frozenset({"mean", "rda"})


@dataclass(frozen=True, slots=True)
class Sample:
    """Some elements of one segment, the same of every member, with what was published about it."""

    pieces: list[Singles]
    inputs: TensorInputs
    coefficients: Sequence[float]


def published_form(rule: str, coefficients: Sequence[float], segments: Sequence[TensorInputs]) -> bool:
    """Whether these can be a rule's coefficients at all, segment after segment: exact, so that all find the same."""
    members = len(segments[0].weights) if segments else 0
    if len(coefficients) != members * len(segments):
        return False
    pieces = [coefficients[index * members : (index + 1) * members] for index in range(len(segments))]
    return all(_has_form(rule, own, inputs.weights) for own, inputs in zip(pieces, segments, strict=True))


def _has_form(rule: str, own: Sequence[float], weights: Sequence[float]) -> bool:
    if rule in BY_WEIGHT:
        return tuple(own) == weight_shares(weights)
    counted = sum(weight > 0 for weight in weights)
    if any(not 0 <= alpha <= 1 or (alpha > 0 and weight == 0) for alpha, weight in zip(own, weights, strict=True)):
        return False
    if rule in ("krum", "multi_krum"):
        chosen = 1 if rule == "krum" else counted - tolerated(counted)
        return sorted(own, reverse=True)[:chosen] == [float(np.float32(1 / chosen))] * chosen and not any(
            sorted(own)[: len(own) - chosen]
        )
    return abs(math.fsum(own) - 1) <= SUM_TOLERANCE


def follows_rule(rule: str, samples: Sequence[Sample]) -> bool:
    """Whether the coefficients agree with what the rule makes of these samples, as far as they can tell."""
    return rule not in BY_DISTANCE or all(excess(rule, sample) <= EXCESS_MAX for sample in samples)


def excess(rule: str, sample: Sample) -> float:
    """How far the furthest published coefficient is from what the sample allows, in shares of its member's weight."""
    weights = np.array(sample.inputs.weights)
    counted = weights > 0
    if len(sample.pieces[0]) < ELEMENTS_MIN or counted.sum() < 3:
        return 0.0
    shares = weights[counted] / weights.sum()
    arrays = [piece for piece, used in zip(sample.pieces, counted, strict=True) if used]
    scales = tensor_scales(rule, sample.inputs)[counted]
    try:
        products = inner_products(arrays)
        centred = centred_products(arrays, products, scales, shares)
    except ValueError:
        return math.inf  # longer than any input that an honest reducer admits
    if rule == "geometric_median":
        low = high = clipping.geometric_median(centred, shares)
    else:
        low = high = clipping.centered_clip(centred, shares)[0]
    if rule == "robust_rda":
        error = min(COSINE_ERRORS / math.sqrt(len(sample.pieces[0])), COSINE_ERROR_MAX)
        low, high = bounds(low, products * np.outer(scales, scales), error)
    published = np.array(sample.coefficients)[counted]
    return float((np.maximum(low - published, published - high) / shares).max())
