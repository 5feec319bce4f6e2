"""Reduces the share of inputs that agree with each other more than all inputs do (docs/adr/0071).

Honest work of one moment has the merge in common, and its residuals have all directions. Colluders that send one vector
pull with all of their shares, and where honest members agree little, two of eight outweigh their common part. The
measure is the cosine between two residuals: two inputs minus the merge. `products` are inner products of the inputs
about any origin.
"""

from __future__ import annotations

import numpy as np

from peer.numerics.robust.medians import weighted_median
from peer.numerics.robust.stack import Floats

ALIKE = 0.25  # colluders below a third, shortened by CenteredClip, bring honest residuals no nearer together
MEMBERS_MIN = 4  # with fewer members, one colluder is already a third
RESIDUAL_MIN = 1e-10  # of the largest squared residual; shorter ones have no direction


def discount_alike(shares: Floats, products: Floats, weights: Floats) -> Floats:
    """Return shares that sum to 1, each first multiplied by its factor from `remaining_factors`. O(n²)."""
    cosines = residual_cosines(shares, products)
    usual = usual_cosine(cosines, weights)
    left = shares * remaining_factors(cosines, weights, usual)
    return shares if (cosines <= usual).all() else np.asarray(left / left.sum())


def factor_bounds(shares: Floats, products: Floats, weights: Floats, error: Floats | float) -> tuple[Floats, Floats]:
    """Return by which factors `discount_alike` may give less and more per input, if cosines err by up to `error`."""
    cosines = residual_cosines(shares, products)
    off = np.broadcast_to(error, shares.shape)[:, None]
    nearer, further = cosines + off, cosines - off
    as_seen = remaining_factors(cosines, weights, usual_cosine(cosines, weights))
    least = remaining_factors(nearer, weights, usual_cosine(further, weights))
    return least / as_seen, remaining_factors(further, weights, usual_cosine(nearer, weights)) / as_seen


def residual_cosines(shares: Floats, products: Floats) -> Floats:
    """Return float64[n, n]: cosines between the residuals y_i − Σ share_j y_j, with −1 for an input and itself.

    The cosine is 0 for a residual without direction, and for all inputs if there are too few for colluders.
    """
    cosines = np.zeros_like(products)
    if len(shares) >= MEMBERS_MIN:
        towards = products @ shares
        rests = products - towards - towards[:, None] + shares @ towards
        squares = rests.diagonal()
        lengths = np.sqrt(np.maximum(squares, max(RESIDUAL_MIN * squares.max(), np.finfo(float).tiny)))
        cosines = rests / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, -1)
    return cosines


def usual_cosine(cosines: Floats, weights: Floats) -> float:
    """Return the cosine without penalty: ¼, or more where most inputs have one as near, as with data of a few kinds."""
    return max(ALIKE, float(weighted_median(cosines.max(axis=1), weights)))


def remaining_factors(cosines: Floats, weights: Floats, usual: float) -> Floats:
    """Return each input's remaining factor: (usual/c)² beyond the usual cosine, a sixteenth each for two equal inputs.

    An input of less weight reduces a heavier one by at most its own weight, so a copy silences no member.
    """
    lost = 1 - np.minimum(1, usual / np.maximum(cosines, usual)) ** 2
    return np.asarray(1 - (lost * np.minimum(1, weights / weights[:, None])).max(axis=1))
