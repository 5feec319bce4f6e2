"""Inputs that agree with each other beyond what all have in common, and what is left of their say (docs/adr/0071).

Honest work of one moment shares the merge, and its rests point every way. Colluders who send one vector pull with all
of theirs, and where the honest agree little, two of eight outweigh what these have in common. So what counts is the
cosine between two rests: what is left of two inputs when the merge is taken off. `products` are inner products of the
inputs about any origin.
"""

from __future__ import annotations

import numpy as np

from peer.numerics.robust.medians import weighted_median
from peer.numerics.robust.stack import Floats

ALIKE = 0.25  # colluders below a third, whom CenteredClip has shortened, bring rests of the honest no nearer together
MEMBERS_MIN = 4  # with fewer, no colluders are below a third
REST_MIN = 1e-10  # of the largest squared rest; shorter ones have no direction


def without_alike(shares: Floats, products: Floats, weights: Floats) -> Floats:
    """Shares that sum to 1, each first multiplied by what `kept` leaves of it. O(n²)."""
    cosines = rest_cosines(shares, products)
    usual = usual_cosine(cosines, weights)
    left = shares * kept(cosines, weights, usual)
    return shares if (cosines <= usual).all() else np.asarray(left / left.sum())


def slack(shares: Floats, products: Floats, weights: Floats, error: Floats | float) -> tuple[Floats, Floats]:
    """By what `without_alike` may give less and more, as factors per input, for cosines off by up to `error`."""
    cosines = rest_cosines(shares, products)
    off = np.broadcast_to(error, shares.shape)[:, None]
    nearer, further = cosines + off, cosines - off
    as_seen = kept(cosines, weights, usual_cosine(cosines, weights))
    least = kept(nearer, weights, usual_cosine(further, weights))
    return least / as_seen, kept(further, weights, usual_cosine(nearer, weights)) / as_seen


def rest_cosines(shares: Floats, products: Floats) -> Floats:
    """float64[n, n]: cosines between the rests y_i − Σ share_j y_j, with −1 for an input and itself.

    0 for a rest without direction, and for all where too few are there to have colluders.
    """
    cosines = np.zeros_like(products)
    if len(shares) >= MEMBERS_MIN:
        towards = products @ shares
        rests = products - towards - towards[:, None] + shares @ towards
        squares = rests.diagonal()
        lengths = np.sqrt(np.maximum(squares, max(REST_MIN * squares.max(), np.finfo(float).tiny)))
        cosines = rests / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, -1)
    return cosines


def usual_cosine(cosines: Floats, weights: Floats) -> float:
    """What costs nobody anything: ¼, or more where most have one who is as near, as with data of a few kinds."""
    return max(ALIKE, float(weighted_median(cosines.max(axis=1), weights)))


def kept(cosines: Floats, weights: Floats, usual: float) -> Floats:
    """Per input, what is left of its share: (usual/c)² beyond the usual, so a sixteenth to each of two equal ones.

    One of less weight takes no more from a heavier one than its own weight: a copy silences nobody.
    """
    lost = 1 - np.minimum(1, usual / np.maximum(cosines, usual)) ** 2
    return np.asarray(1 - (lost * np.minimum(1, weights / weights[:, None])).max(axis=1))
