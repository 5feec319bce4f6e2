"""RDA with one length per row of a matrix instead of one per tensor (DiLoCo 2604.21428 §D.2 leaves the choice open).

A row lies in one partition, so its reducer has all of it. The reducer sets the lengths of rows itself, and members need
not. The result is not a combination of whole pieces, so only a second reduction can check it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from peer.numerics.merge import DIRECTION_MIN
from peer.numerics.robust.medians import weighted_median
from peer.numerics.robust.rules import mean, robust_directions, unit_scales
from peer.numerics.robust.stack import Aggregate, Floats, Singles, Stack


def merge_rows(rule: str, pieces: Sequence[Tensor], weights: Sequence[float], row_elements: int) -> Aggregate:
    """Merge pieces of whole rows into float32[k], row by row. O(n²k).

    `rda`: mean of the lengths × direction of the mean of unit rows. `robust_rda`: weighted median of the lengths ×
    direction of `robust_shares` of all unit rows together. Rows that are zero have no direction and count as zero; rows
    whose directions cancel out become zero. Raises ValueError as the rules do.
    """
    stack = Stack.of(pieces, weights)
    rows = [array.reshape(-1, row_elements) for array in stack.arrays()]
    lengths = np.stack([_lengths(one) for one in rows])
    units = [one * unit_scales(own).astype(np.float32)[:, None] for one, own in zip(rows, lengths, strict=True)]
    average = mean if rule == "rda" else robust_directions
    direction = average([torch.from_numpy(one.reshape(-1)) for one in units], stack.weights.tolist())
    radii = stack.weights @ lengths if rule == "rda" else weighted_median(lengths.T, stack.weights)
    merged: Singles = direction.vector.numpy().reshape(-1, row_elements)
    reached = _lengths(merged)
    scales = np.where(reached >= DIRECTION_MIN, radii / np.maximum(reached, DIRECTION_MIN), 0)
    merged *= scales.astype(np.float32)[:, None]
    return Aggregate(direction.vector, None, direction.clipping_radius)


def _lengths(rows: Singles) -> Floats:
    """Return the length of each row, float64[rows]; raises ValueError if one is not finite."""
    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    if not np.isfinite(lengths).all():
        raise ValueError("an input is not finite")
    return lengths
