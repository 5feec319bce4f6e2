"""Checks published coefficients against their rule, with the leaves that one voter has opened (design §7).

A reducer computes its coefficients from whole segments. A voter sees a sample of the same elements of every input,
which no member can falsify (docs/adr/0008). It runs the rule on the sample and compares. Where a rule's coefficients
follow from weights alone, they must match exactly. Where they follow from distances, sampling requires a tolerance. So
a finding here never convicts a peer: if many voters agree, the partition is only reduced once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from peer.numerics.merge import MergeRule, weight_shares
from peer.numerics.robust import centered_clip as clipping
from peer.numerics.robust.alike import discount_alike, factor_bounds
from peer.numerics.robust.gram import centred_products, inner_products
from peer.numerics.robust.medians import weighted_median
from peer.numerics.robust.opposed import share_bounds
from peer.numerics.robust.segments import TensorInputs, merge_segment, tensor_scales
from peer.numerics.robust.selection import tolerated
from peer.numerics.robust.stack import Floats, Singles

EXCESS_MAX = 0.4  # difference from a sample's coefficient, as share of the weight (docs/explanation/verification.md)
ELEMENTS_MIN = 512  # or their equivalent: fewer elements say too little about a whole partition
ERRORS = 8.0  # over √elements: the tolerated error of a sample's cosines; 7.2 was the most seen, 0.7 the median
COSINE_ERROR_MAX = 0.25  # reached below a thousand elements
LENGTH_MIN = 0.1  # of the usual length; a shorter sample says nothing about a direction
SETTLED = 1e-5  # change of a coefficient that ends an iteration: far less than a sample can resolve
SUM_TOLERANCE = 1e-3  # published coefficients are rounded to float32
LONGER_MAX = 1.01  # of a committed squared norm: admitted inputs stay far below, however sums are rounded
AGREEMENT = 0.01  # of a member's weight: two machines that run the rule on the same segment differ far less

BY_DISTANCE = frozenset({"robust_rda", "centered_clip", "geometric_median"})
BY_WEIGHT = frozenset({"mean", "rda"})


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of elements of one segment, the same for every member, with what was published about it.

    `whole` is the number of elements of the segment. `squares` are the squared norms of the whole segment that members
    have committed to.
    """

    pieces: list[Singles]
    inputs: TensorInputs
    coefficients: Sequence[float]
    whole: int
    squares: tuple[float, ...]

    @property
    def elements(self) -> int:
        return len(self.pieces[0])

    @property
    def variance(self) -> float:
        """Variance of a mean over the sample, in units of the elements' variance: 0 if it is the whole segment."""
        return 1 / self.elements - 1 / self.whole


def published_form(rule: str, coefficients: Sequence[float], segments: Sequence[TensorInputs]) -> bool:
    """Whether a rule can give these coefficients at all, checked by segment. Exact, so all peers agree."""
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


def is_merged_so(
    rule: MergeRule, segments: Sequence[tuple[slice, TensorInputs]], pieces: Sequence[Tensor], own: Sequence[float]
) -> bool:
    """Whether the rule gives these coefficients for the whole inputs of a partition, as far as an audit can tell.

    Sums differ in their last digits between machines, and rules amplify that, so this proves nothing either.
    """
    members = len(pieces)
    for index, (span, inputs) in enumerate(segments):
        try:
            due = merge_segment(rule, [piece[span] for piece in pieces], inputs).coefficients
        except ValueError:
            return False  # as in `follows_rule`
        shares = np.array(inputs.weights) / math.fsum(inputs.weights)
        away = np.array(own[index * members : (index + 1) * members]) - np.array(due)
        if (np.abs(away) > AGREEMENT * shares).any():
            return False
    return True


def fits_norms(sample: Sample) -> bool:
    """Whether no member has more in the sample than it has committed to for the whole segment.

    A member longer than its commitment weighs more than it should, because `segment_factors` divides by the committed
    norm. Only a colluding reducer accepts such an input.
    """
    members = zip(sample.pieces, sample.squares, sample.inputs.weights, strict=True)
    return all(
        float(np.square(piece, dtype=np.float64).sum()) <= LONGER_MAX * committed
        for piece, committed, weight in members
        if weight > 0
    )


def follows_rule(rule: str, samples: Sequence[Sample]) -> bool:
    """Whether the coefficients agree with the rule's for these samples, as far as samples can tell.

    A voter sees little of one segment. So each segment is judged with a wide tolerance, and the mean over all samples
    with a narrow one: sampling errors have all signs, while coefficients that are wrong everywhere err to one side
    (docs/adr/0034).
    """
    if rule not in BY_DISTANCE or not samples or sum(weight > 0 for weight in samples[0].inputs.weights) < 3:
        return True
    variances = np.array([sample.variance for sample in samples])
    elements = np.array([sample.elements for sample in samples])
    parts = elements / elements.sum()
    of_mean = float(parts**2 @ variances)
    try:
        excesses = np.array([excess(rule, sample, (sample.variance, of_mean)) for sample in samples])
    except ValueError:
        return False  # longer than any input that an honest reducer admits
    alone, together = excesses[:, 0].max(axis=(1, 2)), np.tensordot(parts, excesses[:, 1], 1).max()
    if (alone > EXCESS_MAX + ERRORS * np.sqrt(variances)).any():
        return False
    return not (together > EXCESS_MAX and of_mean * ELEMENTS_MIN <= 1)


def excess(rule: str, sample: Sample, variances: Sequence[float]) -> Floats:
    """Return by how much each coefficient is below and above what the sample allows, in shares of its member's weight.

    The result is float64[variances, 2, counted members], one row for each variance of the sample's cosines; values
    below 0 are allowed. Raises ValueError as `inner_products` does.
    """
    weights = np.array(sample.inputs.weights)
    counted = weights > 0
    shares = weights[counted] / weights.sum()
    arrays = [piece for piece, used in zip(sample.pieces, counted, strict=True) if used]
    scales = tensor_scales(rule, sample.inputs)[counted]
    products = inner_products(arrays)
    centred = centred_products(arrays, products, scales, shares)
    if rule == "geometric_median":
        own = clipping.geometric_median(centred, shares, SETTLED)
    else:
        own = clipping.centered_clip(centred, shares, SETTLED)[0]
    limits = [(own, own)] * len(variances)
    if rule == "robust_rda":
        known = _known_lengths(np.sqrt(products.diagonal()) * scales, shares)
        errors = [min(ERRORS * math.sqrt(variance), COSINE_ERROR_MAX) / known for variance in variances]
        scaled = products * np.outer(scales, scales)
        if sample.inputs.embedding:
            limits = [share_bounds(own, scaled, error) for error in errors]
        else:
            kept = discount_alike(own, centred, shares)
            limits = [share_bounds(kept, scaled, error, factor_bounds(own, centred, shares, error)) for error in errors]
    published = np.array(sample.coefficients)[counted]
    return np.asarray(np.array([(low - published, published - high) for low, high in limits]) / shares)


def _known_lengths(lengths: Floats, shares: Floats) -> Floats:
    """Return each input's length in the sample relative to the median, at most 1.

    An input that is short in the sample has its length elsewhere, so the sample says little about its direction as a
    whole.
    """
    usual = float(weighted_median(lengths, shares))
    return np.asarray(np.clip(lengths / max(usual, np.finfo(float).tiny), LENGTH_MIN, 1))
