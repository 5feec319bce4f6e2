"""Two certified states of a fragment become one (design §8, docs/adr/0016), the same bits on every machine."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from peer.fragments import FragmentLayout
from peer.merge import squared_norm
from peer.outer_optimizer import CHUNK_ELEMENTS, OuterState

MOVEMENT_MAX = 0.5  # of a tensor's own length
MOMENTUM_MOVEMENT_MAX = 1.0  # two momenta of equal length without a common direction are √2 of it apart


def reunite(layout: FragmentLayout, won: OuterState, lost: OuterState, share: float) -> OuterState:
    """(1-β)Θ_won + βΘ_lost, and the momentum likewise, tensor by tensor; a tensor that would go too far gets less β.

    A tensor moves by at most `MOVEMENT_MAX` of its length, so that a branch that a few peers certified among themselves
    cannot take it elsewhere; its momentum is bounded likewise. Where a length is not finite, the tensor stays as it is.
    """
    merged = OuterState.empty_like(won.anchor)
    for start, stop in zip(layout.offsets, layout.offsets[1:], strict=False):
        span = slice(start, stop)
        capped = capped_share(won.anchor[span], lost.anchor[span], share, MOVEMENT_MAX)
        beta = np.float32(capped_share(won.momentum[span], lost.momentum[span], capped, MOMENTUM_MOVEMENT_MAX))
        _blend(won.anchor[span], lost.anchor[span], beta, merged.anchor[span])
        _blend(won.momentum[span], lost.momentum[span], beta, merged.momentum[span])
    return merged


def capped_share(won: Tensor, lost: Tensor, share: float, movement_max: float) -> float:
    """The largest β up to `share` by which a tensor moves by at most this part of its length; float32[n] both."""
    with np.errstate(all="ignore"):
        distance, length = math.sqrt(squared_norm(lost - won)), math.sqrt(squared_norm(won))
    if not math.isfinite(distance):
        return 0.0
    return share if share * distance <= movement_max * length else movement_max * length / distance


def _blend(won: Tensor, lost: Tensor, beta: np.float32, out: Tensor) -> None:
    """Two products and a sum, each rounded by itself; with β = 0 the winner's bits."""
    if beta == 0:
        out.copy_(won)
        return
    kept, rest, blended = won.numpy(), lost.numpy(), out.numpy()
    for start in range(0, kept.size, CHUNK_ELEMENTS):
        chunk = slice(start, start + CHUNK_ELEMENTS)
        np.multiply(kept[chunk], np.float32(1) - beta, out=blended[chunk])
        blended[chunk] += rest[chunk] * beta
