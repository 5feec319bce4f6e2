"""CenteredClip and the geometric median, iterated on n coefficients instead of on vectors.

Both are robust means: every input is weighted by its distance from the result. Inputs come as their inner products
about any origin (`gram.centred_products`); results are coefficients that sum to 1.
"""

from __future__ import annotations

import math

import numpy as np

from peer.numerics.robust.gram import distances_to, neighbour_radii, squared_distances
from peer.numerics.robust.medians import weighted_median
from peer.numerics.robust.stack import Floats

ITERATIONS_MAX = 500
SETTLED = 1e-9  # largest change of a coefficient that ends an iteration; float32 resolves 6e-8
EXCESS_MIN = 1e-6  # share of the weight; inner products cannot resolve less
SMOOTHING = 1e-6  # nearest distance that Weiszfeld resolves, in units of the inputs' spread


def clip_coefficients(weights: Floats, distances: Floats, radius: float) -> Floats:
    """Return w·min(1, ρ/distance) over its sum for ρ > 0: CenteredClip's rule, also for checks of coefficients."""
    clipped = weights * (radius / np.maximum(distances, radius))
    shares: Floats = clipped / clipped.sum()
    return shares


def geometric_median(products: Floats, weights: Floats, settled: float = SETTLED) -> Floats:
    """Return argmin_v Σ w_i ‖y_i − v‖ (Weiszfeld; RFA, Pillutla et al. 1912.13445), to some 1e-6 of the inputs' spread.

    A larger `settled` ends sooner and less exactly. Starts from inputs weighted by the distance to the nearest half of
    the others, so that a far input is never the centre. O(n²) per iteration. If an input itself is the median, which
    iterations would approach too slowly, returns that input.
    """
    nearness = neighbour_radii(products, weights)
    nearest = int(np.argmin(nearness))
    excess = _vertex_excess(products, weights)
    vertex = nearest if nearness[nearest] == 0 else int(np.argmax(excess))
    if nearness[vertex] == 0 or excess[vertex] > EXCESS_MIN:
        return _normalised(weights * (squared_distances(products)[vertex] == 0))
    closest = SMOOTHING * math.sqrt(nearness[nearest])
    coefficients = _normalised(weights * (nearness[nearest] / nearness))
    for _ in range(ITERATIONS_MAX):
        before = coefficients
        coefficients = _normalised(weights / np.maximum(distances_to(products, before), closest))
        if np.abs(coefficients - before).max() <= settled:
            break
    return coefficients


def centered_clip(products: Floats, weights: Floats, settled: float = SETTLED) -> tuple[Floats, float]:
    """Return the coefficients of CenteredClip's fixed point `Σ w_i (y_i − v)·min(1, ρ/‖y_i − v‖) = 0`, and ρ.

    Centre: the geometric median; ρ: weighted median distance to it (Karimireddy et al. 2012.10333; BTARD 2106.11257
    iterates to the fixed point). The fixed point minimises a Huber loss, which is convex: reweighting with the rule's
    own coefficients descends to it from any start. O(n²) per iteration. Breaks down at half of the weight. `settled` is
    as in `geometric_median`.
    """
    coefficients = geometric_median(products, weights, settled)
    distances = distances_to(products, coefficients)
    radius = float(weighted_median(distances, weights))
    if radius == 0:
        return coefficients, 0.0
    for _ in range(ITERATIONS_MAX):
        before = coefficients
        coefficients = clip_coefficients(weights, distances_to(products, before), radius)
        if np.abs(coefficients - before).max() <= settled:
            break
    return coefficients, radius


def _vertex_excess(products: Floats, weights: Floats) -> Floats:
    """Return for each input the weight at its place minus the length of the others' joint pull.

    An input with a positive value is the geometric median (Kuhn 1973).
    """
    squares = squared_distances(products)
    apart = squares > 0
    pulls = np.where(apart, weights / np.sqrt(np.where(apart, squares, 1)), 0)
    total = pulls.sum(axis=1)
    towards = pulls @ products
    lengths = np.sum(towards * pulls, axis=1) - 2 * total * towards.diagonal() + total**2 * products.diagonal()
    return np.asarray(~apart @ weights - np.sqrt(np.maximum(lengths, 0)))


def _normalised(values: Floats) -> Floats:
    return np.asarray(values / values.sum())
