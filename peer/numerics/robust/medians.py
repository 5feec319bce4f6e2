"""Weighted order statistics along the last axis: the median of numbers, and trimmed means.

Sums run in sorted order, one element at a time in float64, so every machine gets the same bytes: members take the
lengths of merged tensors from here.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.numerics.robust.stack import Floats

FEW_VALUES = 32  # up to this many values, a loop is faster than an array
TIE = 1e-12  # share of the weight by which sums of the same weights may differ in another order


def weighted_median(values: NDArray[Any], weights: Floats) -> Floats:
    """Return float64[...] from values[..., n]: where the sorted values' cumulative weight passes half.

    Where it is exactly half between two values (up to 1e-12), this is their midpoint. So the median of an even number
    of equal weights is the usual one, and of two numbers it is their mean.
    """
    if values.size <= FEW_VALUES:
        known, rows = weights.tolist(), values.reshape(-1, values.shape[-1]).tolist()
        return np.array([_median_of_few(row, known) for row in rows]).reshape(values.shape[:-1])
    ranked, cumulative = _ranked(values, weights)
    half = cumulative[..., -1:] / 2
    low = (cumulative < half * (1 - TIE)).sum(axis=-1, keepdims=True)
    high = (cumulative <= half * (1 + TIE)).sum(axis=-1, keepdims=True)
    median: Floats = _taken(ranked, low)[..., 0] / 2 + _taken(ranked, high)[..., 0] / 2
    return median


def _median_of_few(values: list[float], weights: list[float]) -> float:
    """Return `weighted_median` of one row, with the same operations and so the same bits."""
    order = sorted(range(len(values)), key=values.__getitem__)
    cumulative = [*accumulate(weights[place] for place in order)]
    half = cumulative[-1] / 2
    low = sum(reached < half * (1 - TIE) for reached in cumulative)
    high = sum(reached <= half * (1 + TIE) for reached in cumulative)
    return values[order[low]] / 2 + values[order[high]] / 2


def weighted_trimmed_mean(values: NDArray[Any], weights: Floats, trimmed: float) -> Floats:
    """Return float64[...] from values[..., n]: the mean without the share `trimmed` < 1/2 of the weight at either end.

    A value on the edge counts with the part of its weight that is inside.
    """
    ranked, cumulative = _ranked(values, weights)
    total = cumulative[..., -1:]
    inner = np.clip(cumulative, total * trimmed, total * (1 - trimmed))
    kept = np.diff(inner, axis=-1, prepend=total * trimmed)
    mass, mean = np.zeros(values.shape[:-1]), np.zeros(values.shape[:-1])
    for rank in range(values.shape[-1]):
        mass += kept[..., rank]
        mean += kept[..., rank] * ranked[..., rank]
    mean /= mass
    return mean


def _ranked(values: NDArray[Any], weights: Floats) -> tuple[Floats, Floats]:
    """Return the values in ascending order, equal ones in roster order, and the weight up to and including each."""
    order = values.argsort(axis=-1, kind="stable")  # by default, the order of equal values depends on the processor
    return _taken(values, order).astype(np.float64), weights[order].cumsum(axis=-1)


def _taken(values: NDArray[Any], places: NDArray[np.intp]) -> NDArray[Any]:
    """Return `np.take_along_axis` on the last axis, without its checks, which are costly for few values."""
    firsts = np.arange(0, values.size, values.shape[-1]).reshape(*values.shape[:-1], 1)
    return np.asarray(values.reshape(-1)[firsts + places])
