"""Calls a plugin's merge rule like the built-in ones, without trusting it.

It merges by coordinate. Each call gets its own read-only arrays, and its result is checked: a plugin that fails on one
input must cost a partition, but never a peer or the reputation of a reducer.
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
    """The plugin's function failed here; this says nothing about other peers. The message begins with a verb."""


def merge_with_plugin(function: PieceRule, vectors: Sequence[Tensor], weights: Sequence[float]) -> Aggregate:
    """Merge as the rules of `peer.numerics.robust.rules`; also raises RuleError."""
    stack = Stack.of(vectors, weights)
    return by_chunk(stack, lambda chunk: apply_rule(function, np.stack([one.numpy() for one in chunk]), stack.weights))


def apply_rule(function: PieceRule, pieces: Singles, weights: Floats) -> Singles:
    """Return float32[k] from float32[n, k] and float64[n] > 0 that sum to 1; raises RuleError."""
    own, shares = np.ascontiguousarray(pieces).view(), weights.view()
    own.flags.writeable = shares.flags.writeable = False
    try:
        with np.errstate(all="ignore"):
            merged: Singles = function(own, shares)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        raise RuleError(f"raises {type(error).__name__}: {error}") from None
    if type(merged) is not np.ndarray or merged.dtype != np.float32 or merged.shape != own.shape[1:]:
        raise RuleError("does not return one float32 number per column")
    if not np.isfinite(merged).all():
        raise RuleError("returns numbers that are not finite")
    return merged
