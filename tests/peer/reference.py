"""Mean and RDA over whole fragments in float64: the results that the wired path must reach."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peer.numerics.fragments import FragmentLayout
from peer.numerics.merge import DIRECTION_MIN, NORM_MIN, weighted_mean


def reference_mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return Σ w v / Σ w over whole fragments in float64, which `mean` must reach."""
    stacked = torch.stack([vector.double() for vector in vectors])
    shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    return (shares[:, None] * stacked).sum(0)


def reference_rda(layout: FragmentLayout, vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return RDA over whole fragments in float64: (Σ w‖v‖ / Σ w) · φ(Σ w φ(v) / Σ w) per tensor; embeddings by mean."""
    merged = reference_mean(vectors, weights)
    for tensor, start in zip(layout.tensors, layout.offsets, strict=False):
        if tensor.embedding:
            continue
        pieces = [vector[start : start + tensor.elements].double() for vector in vectors]
        norms = [float(piece.norm()) for piece in pieces]
        units = [piece / norm if norm >= NORM_MIN else piece * 0 for piece, norm in zip(pieces, norms, strict=True)]
        direction = reference_mean(units, weights)
        length = float(direction.norm())
        phi = direction / length if length >= DIRECTION_MIN else direction * 0
        merged[start : start + tensor.elements] = weighted_mean(norms, weights) * phi
    return merged
