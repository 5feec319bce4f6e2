"""Reduces the share of inputs that point away from the merge of the others (docs/adr/0031).

CenteredClip bounds how far an input pulls, but not in which direction. One that points backwards cancels what the
others have in common, and the remainder is then lengthened with all its noise. Here `products` are inner products of
the inputs about the true origin.
"""

from __future__ import annotations

import numpy as np

from peer.numerics.merge import DIRECTION_MIN
from peer.numerics.robust.stack import Floats

OPPOSED = -0.25  # cosine with the others at which an input has no share left


def discount_opposed(shares: Floats, products: Floats) -> Floats:
    """Return shares that sum to 1, each first multiplied by its factor from `direction_factors`. O(n²).

    The merge of all would include the input itself, and where honest members agree little, that hides an input that
    points backwards. Shares stay unchanged if all inputs point away, as two that cancel out.
    """
    cosines = _cosines(shares, products)
    left = shares * direction_factors(cosines)
    return shares if (cosines >= 0).all() or not left.any() else np.asarray(left / left.sum())


def direction_factors(cosines: Floats) -> Floats:
    """Return 1 for a cosine of at least 0, falling to 0 at `OPPOSED`: a ramp, so that no last digit decides."""
    return np.asarray(np.clip(1 - cosines / OPPOSED, 0, 1))


def share_bounds(
    shares: Floats, products: Floats, error: Floats | float, factors: tuple[Floats | float, Floats | float] = (1.0, 1.0)
) -> tuple[Floats, Floats]:
    """Return for each input the least and the most that `discount_opposed` can give for cosines off by up to `error`.

    `factors` are factors by which a share may itself be smaller and larger.
    """
    cosines = _cosines(shares, products)
    least = shares * factors[0] * direction_factors(cosines - error)
    most = shares * factors[1] * direction_factors(cosines + error)
    low, high = _among(least, most), _among(most, least)
    if least.any():
        return low, high
    return np.minimum(low, shares), np.maximum(high, shares)  # all inputs may point away, and shares are unchanged then


def _among(own: Floats, others: Floats) -> Floats:
    """Return each of `own` as a share of itself plus `others` without its own entry."""
    whole = own + others.sum() - others
    return np.asarray(np.divide(own, whole, out=np.zeros(len(own)), where=own > 0))


def _cosines(shares: Floats, products: Floats) -> Floats:
    """Return each input's cosine with the merge of the others, `Σ_{j≠i} share_j y_j`; 0 where one has no direction."""
    towards, squares = products @ shares, products.diagonal()
    others = np.maximum(shares @ towards - shares * (2 * towards - shares * squares), 0)
    told = others >= (DIRECTION_MIN**2) * squares.max()
    lengths = np.sqrt(squares * others)
    return np.divide(towards - shares * squares, lengths, out=np.zeros(len(shares)), where=told & (lengths > 0))
