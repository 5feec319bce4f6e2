"""Inputs that point away from the merge of all, and what is left of their say (docs/adr/0031).

CenteredClip bounds how far an input pulls, not where to. One that points backwards takes away from what the others
have in common, and the rest of that is lengthened with all its noise. Here `products` are inner products of the
inputs about the true origin.
"""

from __future__ import annotations

import math

import numpy as np

from peer.numerics.merge import DIRECTION_MIN
from peer.numerics.robust.stack import Floats

OPPOSED = -0.25  # cosine with the merge at which an input has no say; honest outer gradients have 0.3 and more


def without_opposed(shares: Floats, products: Floats) -> Floats:
    """Shares that sum to 1, each first multiplied by `say` of its input's cosine with `Σ share_j y_j`. O(n²)."""
    cosines = _cosines(shares, products)
    left = shares * say(cosines)
    return shares if (cosines >= 0).all() else np.asarray(left / left.sum())


def say(cosines: Floats) -> Floats:
    """1 for a row that does not point away, down to 0 at `OPPOSED`: a ramp, so that nothing hangs on a last digit."""
    return np.asarray(np.clip(1 - cosines / OPPOSED, 0, 1))


def bounds(
    shares: Floats, products: Floats, error: Floats | float, slack: tuple[Floats | float, Floats | float] = (1.0, 1.0)
) -> tuple[Floats, Floats]:
    """Per input the least and the most that `without_opposed` can give for cosines off by up to `error`.

    `slack` are factors by which a share may itself be less and more.
    """
    cosines = _cosines(shares, products)
    least, most = shares * slack[0] * say(cosines - error), shares * slack[1] * say(cosines + error)
    return _among(least, most), _among(most, least)


def _among(own: Floats, others: Floats) -> Floats:
    """Each of `own` as a share of itself and all but its own of `others`."""
    whole = own + others.sum() - others
    return np.asarray(np.divide(own, whole, out=np.zeros(len(own)), where=own > 0))


def _cosines(shares: Floats, products: Floats) -> Floats:
    """With `Σ share_j y_j`; 0 for an input without direction, and for all if they cancel."""
    towards = products @ shares
    lengths = np.sqrt(products.diagonal())
    merged = math.sqrt(max(float(shares @ towards), 0.0))
    if merged < DIRECTION_MIN * float(lengths.max()):
        return np.zeros(len(shares))
    return np.asarray(towards / np.maximum(lengths * merged, np.finfo(float).tiny))
