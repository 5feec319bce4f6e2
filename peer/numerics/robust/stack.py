"""The input and output of every rule: a stack of vectors with weights, and a vector with its coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.numerics.merge import combine

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A merged vector, float32[d].

    `coefficients` has one float32 value per member: `vector` is `combination(vectors, coefficients)` bit for bit. It is
    None where the result is not a combination of whole vectors. `clipping_radius` is CenteredClip's ρ.
    """

    vector: Tensor
    coefficients: tuple[float, ...] | None
    clipping_radius: float | None = None


Aggregator = Callable[[Sequence[Tensor], Sequence[float]], Aggregate]


@dataclass(frozen=True, slots=True)
class Stack:
    """The members with weight, in roster order. `weights` sum to 1, `places` are roster indices."""

    vectors: tuple[Tensor, ...]
    weights: Floats
    places: tuple[int, ...]
    roster: int

    @classmethod
    def of(cls, vectors: Sequence[Tensor], weights: Sequence[float]) -> Stack:
        """Leave out members of weight 0; raises ValueError if shapes, types or weights are invalid for a rule."""
        if not vectors or len(weights) != len(vectors):
            raise ValueError(f"{len(vectors)} vectors have {len(weights)} weights")
        if any(vector.ndim != 1 or vector.dtype != torch.float32 for vector in vectors):
            raise ValueError("a rule merges flat float32 vectors")
        if len({len(vector) for vector in vectors}) != 1 or not len(vectors[0]):
            raise ValueError("a rule merges vectors of one length, at least one element long")
        if not (math.isfinite(sum(weights)) and min(weights) >= 0):
            raise ValueError("weights and their sum are finite and not negative")
        places = tuple(place for place, weight in enumerate(weights) if weight > 0)
        if not places:
            raise ValueError("no member has any weight")
        counted = np.array([weights[place] for place in places], np.float64)
        return cls(tuple(vectors[place] for place in places), counted / math.fsum(counted), places, len(vectors))

    @property
    def count(self) -> int:
        return len(self.places)

    def arrays(self) -> list[Singles]:
        return [vector.numpy() for vector in self.vectors]

    def spread(self, coefficients: Floats) -> tuple[float, ...]:
        """Return one float32 value per roster member from one number per counted member; 0 for the others."""
        published = np.zeros(self.roster, np.float32)
        published[list(self.places)] = coefficients
        return tuple(published.tolist())


def finite_sum(vectors: Sequence[Tensor], factors: Sequence[np.float32], out: Tensor | None = None) -> Tensor:
    """Return `peer.numerics.merge.combine` of at least one float32[d]; raises ValueError on elements not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        merged = combine(vectors, [factors], [slice(0, len(vectors[0]))], out)
    if not np.isfinite(merged.numpy()).all():
        raise ValueError("an input is not finite")
    return merged


def combination(vectors: Sequence[Tensor], coefficients: Sequence[float]) -> Tensor:
    """Return Σ coefficient · vector over the members with a nonzero coefficient, in roster order: float32[d].

    Each product and each sum is rounded to float32, so the bytes are the same on every machine. Raises ValueError if an
    element is not finite, because an input is not finite or absurdly large.
    """
    return finite_sum(vectors, [np.float32(coefficient) for coefficient in coefficients])


def aggregate(stack: Stack, vectors: Sequence[Tensor], coefficients: Floats, radius: float | None = None) -> Aggregate:
    """Round float64 numbers, one per counted member, to float32 coefficients, and combine the vectors with these."""
    published = stack.spread(coefficients)
    return Aggregate(combination(vectors, published), published, radius)
