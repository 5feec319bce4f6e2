"""A rule that an installed package brings, called like the built-in ones, and not trusted to do what it should.

It merges by coordinate. Each call gets arrays of its own that cannot be written to, and what comes back is looked at:
a package that fails at one input must cost a partition, never a peer or the good name of a reducer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from dht.errors import LocalError
from peer.numerics.merge import PieceRule
from peer.numerics.robust.rules import by_chunk
from peer.numerics.robust.stack import Aggregate, Floats, Singles, Stack


class RuleError(LocalError):
    """The package's function failed, here and now: says nothing about anybody else. The message begins with a verb."""


def merge_brought(function: PieceRule, vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """As the rules of `peer.numerics.robust.rules`; also raises RuleError."""
    stack = Stack.of(vectors, weights)
    return by_chunk(stack, lambda chunk: apply_rule(function, np.stack([one.numpy() for one in chunk]), stack.weights))


def apply_rule(function: PieceRule, pieces: Singles, weights: Floats) -> Singles:
    """float32[k] from float32[n, k] and float64[n] > 0 that sum to 1; raises RuleError."""
    own, shares = np.ascontiguousarray(pieces).view(), weights.view()
    own.flags.writeable = shares.flags.writeable = False
    try:
        with np.errstate(all="ignore"):
            merged: Singles = function(own, shares)
    except Exception as error:  # noqa: BLE001 - whatever a package does
        raise RuleError(f"raises {type(error).__name__}: {error}") from None
    if type(merged) is not np.ndarray or merged.dtype != np.float32 or merged.shape != own.shape[1:]:
        raise RuleError("does not return one float32 number per column")
    if not np.isfinite(merged).all():
        raise RuleError("returns numbers that are not finite")
    return merged
