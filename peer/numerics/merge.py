"""The common part of all merge rules: names, the exact sum, lengths (DiLoCo 2604.21428 §D.2). Works by partition.

No reducer sees a whole tensor, so the work is split (design §7). A reducer scales every input by one factor per segment
(`peer.numerics.robust.segments`) and adds in roster order. Element by element, multiplication and addition are each
rounded to float32, so that any peer's recomputation gives the same bytes. The length of a merged direction needs the
whole tensor, so members set it afterwards. All numbers here are computed in float64 in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coordinator.run.manifest import Merge
from peer.machine.buffer_pool import new_vector
from peer.numerics.fragments import TensorSpec

CHUNK_ELEMENTS = 1 << 15  # 128 KiB, so that accumulator and product stay in a core's cache
ROW_ELEMENTS = 1 << 8  # number of squares to which each chunk is folded separately
NORM_MIN = 1e-12  # an input shorter than this has no direction
DIRECTION_MIN = 1e-6  # a shorter mean of unit vectors is only rounding error of vectors that cancel out

PieceRule = Callable[[NDArray[np.float32], NDArray[np.float64]], Any]
"""The rule of an installed plugin (docs/how-to/aggregators.md); only `peer.numerics.robust.plugin_rule` calls it."""


@dataclass(frozen=True, slots=True)
class MergeRule:
    """A merge rule. `directional` rules merge unit vectors, tensor by tensor; members then set the result's length.

    Embeddings keep their lengths under every rule, because their lengths differ in rows that few members saw. With
    `by_row`, matrices are merged as unit rows, and their reducer sets the rows' lengths, so members receive them
    complete. A plugin's rule has its `function`, and is not directional.
    """

    name: str
    directional: bool
    by_row: bool = False
    function: PieceRule | None = None

    def is_directional(self, tensor: TensorSpec) -> bool:
        return self.directional and not tensor.embedding and not self.has_rows(tensor)

    def has_rows(self, tensor: TensorSpec) -> bool:
        """Whether this tensor is merged row by row."""
        return self.directional and self.by_row and not tensor.embedding and len(tensor.shape) > 1


MERGES: Mapping[str, MergeRule] = MappingProxyType(
    {name: MergeRule(name, directional=name in ("robust_rda", "rda")) for name in get_args(Merge)}
)
"""Every built-in rule by its name in manifests; `peer.numerics.robust` computes them."""


def weight_shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Return w / Σw as float32 values, in order; all zero if the weights are."""
    total = math.fsum(weights)
    return tuple(float(np.float32(weight / total)) if total > 0 else 0.0 for weight in weights)


def combine(
    vectors: Sequence[Tensor],
    factors: Sequence[Sequence[np.float32]],
    spans: Sequence[slice],
    out: Tensor | None = None,
) -> Tensor:
    """Return Σ factor · vector over at least one vector, in order: float32[n].

    `factors[k][i]` is for vector i in `spans[k]`. The spans are consecutive and cover the vectors. A vector with factor
    0 is not read. The result is written to `out`, float32[n], if given.
    """
    arrays = [vector.numpy() for vector in vectors]
    total = new_vector(len(vectors[0])) if out is None else out
    sums, product = total.numpy(), np.empty(CHUNK_ELEMENTS, np.float32)
    for span, span_factors in zip(spans, factors, strict=True):
        used = [(array, factor) for array, factor in zip(arrays, span_factors, strict=True) if factor != 0]
        if not used:
            sums[span] = 0
            continue
        for start in range(span.start, span.stop, CHUNK_ELEMENTS):
            chunk = slice(start, min(start + CHUNK_ELEMENTS, span.stop))
            np.multiply(used[0][0][chunk], used[0][1], out=sums[chunk])
            for array, factor in used[1:]:
                sums[chunk] += np.multiply(array[chunk], factor, out=product[: chunk.stop - chunk.start])
    return total


def direction_scale(radius: float, squared_norm: float, share: float = 1.0) -> np.float32:
    """Return the factor that scales a merged direction to length `radius`; 0 where directions cancelled out.

    `squared_norm` belongs to the live part of the tensor; `share` is that part's share of the squared length.
    """
    length = math.sqrt(squared_norm)
    if length < DIRECTION_MIN * math.sqrt(share) or length == 0:
        return np.float32(0)
    return np.float32(radius * math.sqrt(share) / length)


def squared_norm(vector: Tensor) -> float:
    """Return ‖x‖² of float32[n] in float64, the same number on every machine.

    Squares of float32 are exact in float64. They are summed by folding the upper half of a chunk onto the lower one,
    element by element, in an order that no library chooses.
    """
    values = vector.numpy()
    whole, total = values.size // CHUNK_ELEMENTS, 0.0
    room, rows = np.empty(min(CHUNK_ELEMENTS, values.size)), np.empty((whole, ROW_ELEMENTS))
    for chunk, row in zip(values[: whole * CHUNK_ELEMENTS].reshape(whole, CHUNK_ELEMENTS), rows, strict=True):
        row[:] = _folded(_squares(chunk, room), ROW_ELEMENTS)
    if whole:
        for square in _folded(rows.T, 1)[0].tolist():  # the last steps of all chunks at once
            total += square
    rest = values[whole * CHUNK_ELEMENTS :]
    return total + float(_folded(_squares(rest, room), 1)[0]) if rest.size else total


def _squares(values: NDArray[np.float32], room: NDArray[np.float64]) -> NDArray[np.float64]:
    squares = room[: values.size]
    squares[:] = values
    squares *= squares
    return squares


def _folded(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Fold the upper half of the first axis onto the lower one, in place, until at most `size` entries are left."""
    while len(values) > size:
        half = (len(values) + 1) // 2
        lower = values[: len(values) - half]
        np.add(lower, values[half:], out=lower)  # not `+=`, which would copy the slice onto itself afterwards
        values = values[:half]
    return values


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return Σwv / Σw; 0 without weight."""
    total = math.fsum(weights)
    return (
        math.fsum(weight * value for value, weight in zip(values, weights, strict=True)) / total if total > 0 else 0.0
    )


def lower_weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the smallest value that at least half of the weight does not exceed; 0 without weight."""
    half, reached = math.fsum(weights) / 2, 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        reached += weight
        if weight > 0 and reached >= half:
            return value
    return 0.0
