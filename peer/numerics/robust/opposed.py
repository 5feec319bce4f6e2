"""Inputs that point away from what the others come to, and what is left of their say (docs/adr/0031).

CenteredClip bounds how far an input pulls, not where to. One that points backwards takes away from what the others
have in common, and the rest of that is lengthened with all its noise. Here `products` are inner products of the
inputs about the true origin.
"""

from __future__ import annotations

import numpy as np

from peer.numerics.merge import DIRECTION_MIN
from peer.numerics.robust.stack import Floats

OPPOSED = -0.25  # cosine with the others at which an input has no say


def without_opposed(shares: Floats, products: Floats) -> Floats:
    """Shares that sum to 1, each first multiplied by `say` of its input's cosine with the others. O(n²).

    With the merge of all, an input would also agree with itself: where the honest agree little, that hides who points
    backwards. As they are where everybody points away, as two do that cancel.
    """
    cosines = _cosines(shares, products)
    left = shares * say(cosines)
    return shares if (cosines >= 0).all() or not left.any() else np.asarray(left / left.sum())


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
    low, high = _among(least, most), _among(most, least)
    if least.any():
        return low, high
    return np.minimum(low, shares), np.maximum(high, shares)  # everybody may point away, and shares stay then


def _among(own: Floats, others: Floats) -> Floats:
    """Each of `own` as a share of itself and all but its own of `others`."""
    whole = own + others.sum() - others
    return np.asarray(np.divide(own, whole, out=np.zeros(len(own)), where=own > 0))


def _cosines(shares: Floats, products: Floats) -> Floats:
    """With what the others come to, `Σ_{j≠i} share_j y_j`; 0 where an input or they have no direction."""
    towards, squares = products @ shares, products.diagonal()
    others = np.maximum(shares @ towards - shares * (2 * towards - shares * squares), 0)
    told = others >= (DIRECTION_MIN**2) * squares.max()
    lengths = np.sqrt(squares * others)
    return np.divide(towards - shares * squares, lengths, out=np.zeros(len(shares)), where=told & (lengths > 0))
