"""Every merge rule over a stack of n whole vectors, float32[d] each: d is one tensor, or one chunk of one.

Symbols: weights w, of which only the ratios count and where 0 leaves a member out; W their sum; f̂ (`byzantine`) the
number of hostile members that a rule is set for, by default the most below n/3. For every rule κ
(docs/explanation/merging.md) is at least f/(n − 2f). All rules raise ValueError for inputs that are not finite, flat,
float32 and of one length, and for weights that are not finite, negative or all 0. One member's vector is returned as it
is.

Combinations `Σ α_i x_i`, with α published: mean, rda, robust_rda, centered_clip, geometric_median, krum, multi_krum. By
coordinate, recomputed exactly: median, trimmed_mean. Neither: nnm_trimmed_mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from peer.numerics.merge import DIRECTION_MIN, NORM_MIN
from peer.numerics.robust import centered_clip as clipping
from peer.numerics.robust.alike import discount_alike
from peer.numerics.robust.gram import centred_products, inner_products, squared_distances
from peer.numerics.robust.medians import weighted_median, weighted_trimmed_mean
from peer.numerics.robust.opposed import discount_opposed
from peer.numerics.robust.selection import krum_order, nearest_mixing, tolerated
from peer.numerics.robust.stack import Aggregate, Aggregator, Floats, Singles, Stack, aggregate, combination

CLIP_FACTOR = 1.25  # norms of honest outer gradients are within 1.11 of their median
CHUNK_ELEMENTS = 1 << 13  # of each member at once, in rules that sort


def mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Return Σ w_i x_i / W (McMahan et al. 1602.05629). O(nd). Breaks down with one hostile member; κ = ∞."""
    stack = Stack.of(vectors, weights)
    return aggregate(stack, vectors, stack.weights)


def rda(vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Return mean length × mean direction: (Σ w_i‖x_i‖ / W) · φ(Σ w_i φ(x_i)), φ(x) = x/‖x‖, φ(0) = 0.

    DiLoCo 2604.21428 §D.2. O(n²d) for the norms and the length of the sum. A direction counts once whatever its length,
    but one huge norm lengthens the result without bound: breaks down with one hostile member.
    """
    stack = Stack.of(vectors, weights)
    products = inner_products(stack.arrays())
    radius = float(np.sqrt(products.diagonal()) @ stack.weights)
    return aggregate(stack, vectors, _rescaled(stack.weights, products, radius))


def robust_rda(vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Return weighted median of norms × direction of `robust_shares` of unit vectors: the default rule (design §7).

    `med‖x‖ · φ(Σ share_i φ(x_i))`. O(n²d). Breaks down at half of the weight in length. In direction it is bounded by
    the honest spread up to a third of hostile weight (docs/explanation/merging.md). More colluders, but fewer than
    half, that send one and the same vector reverse it where honest members agree little (docs/adr/0046). A member's own
    length affects only the median. Directions that cancel out give 0. Embeddings are merged by `robust_embedding`
    instead.
    """
    stack = Stack.of(vectors, weights)
    products = inner_products(stack.arrays())
    norms = np.sqrt(products.diagonal())
    shares, clip = robust_shares(stack, products, unit_scales(norms), directional=True)
    radius = float(weighted_median(norms, stack.weights))
    return aggregate(stack, vectors, _rescaled(shares, products, radius), clip)


def robust_embedding(vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Merge by `robust_shares` vectors clipped to 1.25 × the weighted median norm: `robust_rda` for embeddings.

    Embeddings keep their length, because it differs in rows that few members saw (DiLoCo 2604.21428 §D.2). O(n²d).
    Breaks down as `robust_rda` does.
    """
    stack = Stack.of(vectors, weights)
    products = inner_products(stack.arrays())
    scales = clip_scales(np.sqrt(products.diagonal()), stack.weights)
    shares, clip = robust_shares(stack, products, scales, directional=False)
    return aggregate(stack, vectors, shares * scales, clip)


def robust_directions(vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Merge by `robust_shares` vectors that have been scaled already. O(n²d)."""
    stack = Stack.of(vectors, weights)
    shares, clip = robust_shares(stack, inner_products(stack.arrays()), np.ones(stack.count), directional=True)
    return aggregate(stack, vectors, shares, clip)


def robust_shares(stack: Stack, products: Floats, scales: Floats, directional: bool) -> tuple[Floats, float]:
    """Return the shares of `robust_rda` for each y_i = scale_i · x_i, summing to 1, and CenteredClip's ρ.

    `products` are of the x_i. Starts from CenteredClip. Then reduces the shares of directions that agree with each
    other beyond the merge (docs/adr/0071), and of inputs that point away from the others (docs/adr/0031). Embeddings
    may agree, because many members have not seen a token.
    """
    centred = centred_products(stack.arrays(), products, scales, stack.weights)
    shares, clip = clipping.centered_clip(centred, stack.weights)
    if directional:
        shares = discount_alike(shares, centred, stack.weights)
    return discount_opposed(shares, products * np.outer(scales, scales)), clip


def centered_clip(vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Return v with `Σ w_i (x_i − v)·min(1, ρ/‖x_i − v‖) = 0`: α_i ∝ w_i·min(1, ρ/‖x_i − v‖); needs no f̂.

    Karimireddy et al. 2012.10333, to the fixed point as in BTARD 2106.11257; ρ is the weighted median distance to the
    geometric median. O(n²d). Breaks down at half of the weight; hostile weight B pulls with at most ρB.
    """
    stack = Stack.of(vectors, weights)
    shares, radius = clipping.centered_clip(_centred(stack), stack.weights)
    return aggregate(stack, vectors, shares, radius)


def geometric_median(vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Return argmin_v Σ w_i ‖x_i − v‖: α_i ∝ w_i/‖x_i − v‖ (RFA, Pillutla et al. 1912.13445). O(n²d).

    Breaks down at half of the weight; κ ≤ 4(1 + f/(n − 2f))².
    """
    stack = Stack.of(vectors, weights)
    return aggregate(stack, vectors, clipping.geometric_median(_centred(stack), stack.weights))


def krum(vectors: Sequence[Tensor], weights: Sequence[float], byzantine: int | None = None) -> Aggregate:
    """Return the input with the least sum of squared distances to its n − f̂ − 2 nearest (Blanchard et al. 2017).

    O(n²d). Weights have no accepted meaning here: they only leave members out. Needs n ≥ 2f̂ + 3 for its bound, κ ≤ 6(1
    + f/(n − 2f)); breaks down with f̂ + 1 hostile members. Equal scores, which occur always for n < 5, go to the first
    in the roster.
    """
    return _best_by_krum(vectors, weights, byzantine, only=True)


def multi_krum(vectors: Sequence[Tensor], weights: Sequence[float], byzantine: int | None = None) -> Aggregate:
    """Return the plain mean of the n − f̂ inputs with the best Krum scores (Blanchard et al. 2017). O(n²d).

    Weights, n and the breakdown point are as for `krum`: of f̂ + 1 hostile members one may be among those inputs.
    """
    return _best_by_krum(vectors, weights, byzantine, only=False)


def median(vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Return the weighted median of each coordinate; the midpoint where half of the weight ends between two values.

    Yin et al. 1803.01498. O(nd log n). Breaks down at half of the weight; κ ≤ 4(1 + f/(n − 2f))². Never outside the
    honest members' range while they hold more than half.
    """
    stack = Stack.of(vectors, weights)
    return by_chunk(stack, lambda chunk: weighted_median(_columns(chunk), stack.weights))


def trimmed_mean(vectors: Sequence[Tensor], weights: Sequence[float], byzantine: int | None = None) -> Aggregate:
    """Return per coordinate the weighted mean without the weight f̂W/n at either end (Yin et al. 1803.01498).

    O(nd log n). A value on the edge counts in part. Breaks down beyond f̂ members of average weight; κ ≤ 6f/(n − 2f)·(1
    + f/(n − 2f)). Raises ValueError unless 2f̂ < n.
    """
    stack = Stack.of(vectors, weights)
    trimmed = _trimmed(stack, byzantine)
    return by_chunk(stack, lambda chunk: weighted_trimmed_mean(_columns(chunk), stack.weights, trimmed))


def nnm_trimmed_mean(vectors: Sequence[Tensor], weights: Sequence[float], byzantine: int | None = None) -> Aggregate:
    """Return `trimmed_mean` after replacing each vector by the weighted mean of its nearest, up to weight (1 − f̂/n)W.

    NNM, Allouah et al. 2302.01772. O(n²d). κ ≤ 8f/(n − f)·(1 + κ of the trimmed mean); breaks down beyond f̂ members of
    average weight. Has no published coefficients, so only a second reducer can check it. Raises ValueError unless 2f̂ <
    n.
    """
    stack = Stack.of(vectors, weights)
    trimmed = _trimmed(stack, byzantine)
    mixing = nearest_mixing(squared_distances(_centred(stack)), stack.weights, trimmed).astype(np.float32)

    def mixed(chunk: list[Tensor]) -> Floats:
        return weighted_trimmed_mean(
            _columns([combination(chunk, row.tolist()) for row in mixing]), stack.weights, trimmed
        )

    return by_chunk(stack, mixed)


AGGREGATORS: Mapping[str, Aggregator] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            robust_rda,
            centered_clip,
            median,
            trimmed_mean,
            geometric_median,
            nnm_trimmed_mean,
            krum,
            multi_krum,
            rda,
            mean,
        )
    }
)
"""Every rule of this module by its name in manifests, the default first."""


def unit_scales(norms: Floats) -> Floats:
    """Return 1/‖x‖, and 0 for an input too short to have a direction."""
    return np.asarray(np.where(norms >= NORM_MIN, 1 / np.maximum(norms, NORM_MIN), 0.0))


def clip_scales(norms: Floats, weights: Floats) -> Floats:
    """Return min(1, 1.25·med/‖x‖) with the weighted median of the norms, so that no input gets longer."""
    longest = CLIP_FACTOR * float(weighted_median(norms, weights))
    return np.asarray(longest / np.maximum(norms, max(longest, NORM_MIN)))


def _rescaled(shares: Floats, products: Floats, radius: float) -> Floats:
    """Return the coefficients of the inputs in `radius` · φ(Σ share_i φ(x_i))."""
    directed = shares * unit_scales(np.sqrt(products.diagonal()))
    length = math.sqrt(max(float(directed @ products @ directed), 0.0))
    return directed * (radius / length) if length >= DIRECTION_MIN else directed * 0


def _centred(stack: Stack) -> Floats:
    arrays = stack.arrays()
    return centred_products(arrays, inner_products(arrays), np.ones(stack.count), stack.weights)


def _best_by_krum(vectors: Sequence[Tensor], weights: Sequence[float], byzantine: int | None, only: bool) -> Aggregate:
    stack = Stack.of(vectors, weights)
    tolerance = _tolerance(stack, byzantine)
    order = krum_order(squared_distances(_centred(stack)), tolerance)
    best = order[: 1 if only else stack.count - tolerance]
    coefficients = np.zeros(stack.count)
    coefficients[best] = 1 / len(best)
    return aggregate(stack, vectors, coefficients)


def _tolerance(stack: Stack, byzantine: int | None) -> int:
    wanted = tolerated(stack.count) if byzantine is None else byzantine
    if not 0 <= 2 * wanted < stack.count:
        raise ValueError(f"no rule stands {wanted} hostile members of {stack.count}")
    return wanted


def _trimmed(stack: Stack, byzantine: int | None) -> float:
    return _tolerance(stack, byzantine) / stack.count


def _columns(chunk: Sequence[Tensor]) -> Singles:
    """Return float32[elements, n]: one row per coordinate, so that sorting runs along contiguous memory."""
    return np.stack([vector.numpy() for vector in chunk], axis=1)


def by_chunk(stack: Stack, rule: Callable[[list[Tensor]], Floats | Singles]) -> Aggregate:
    """Run a rule by coordinate on chunks of elements; raises ValueError if an input is not finite."""
    length = len(stack.vectors[0])
    merged = torch.empty(length)
    for start in range(0, length, CHUNK_ELEMENTS):
        chunk = [vector[start : start + CHUNK_ELEMENTS] for vector in stack.vectors]
        if not all(np.isfinite(vector.numpy()).all() for vector in chunk):
            raise ValueError("an input is not finite")
        merged.numpy()[start : start + CHUNK_ELEMENTS] = rule(chunk)
    return Aggregate(merged, None)
