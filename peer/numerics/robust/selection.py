"""Rules that use each member's nearest neighbours: Krum's choice and nearest-neighbour mixing."""

from __future__ import annotations

import numpy as np

from peer.numerics.robust.stack import Floats


def tolerated(members: int) -> int:
    """Return the largest number below a third of the members, which a group is built to tolerate (design §9)."""
    return (members - 1) // 3


def krum_order(squares: Floats, byzantine: int) -> list[int]:
    """Return the members by Krum's score, the best first.

    The score is the sum of squared distances to the n − f̂ − 2 nearest others, at least one. `squares` is float64[n,
    n]. Ties go to the first in the roster. Blanchard et al. 2017.
    """
    neighbours = max(len(squares) - byzantine - 2, 1)
    scores = np.sort(squares, axis=1)[:, 1 : 1 + neighbours].sum(axis=1)  # the nearest of all is the member itself
    return [int(place) for place in np.argsort(scores, kind="stable")]


def nearest_mixing(squares: Floats, weights: Floats, trimmed: float) -> Floats:
    """Return in row i the coefficients of the weighted mean of member i's nearest, up to 1 − trimmed of the weight.

    The member itself comes first, and the last one counts with the rest. float64[n, n], rows sum to 1. NNM, Allouah et
    al. 2302.01772.
    """
    own_first = squares.copy()
    np.fill_diagonal(own_first, -1)
    order = np.argsort(own_first, axis=1, kind="stable")
    kept = weights.sum() * (1 - trimmed)
    reached = np.minimum(np.cumsum(weights[order], axis=1), kept)
    mixing = np.empty_like(squares)
    np.put_along_axis(mixing, order, np.diff(reached, axis=1, prepend=0) / kept, axis=1)
    return mixing
