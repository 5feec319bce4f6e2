"""A certified state as the tensors of a file: `anchor`, and `momentum` or the leaf digests of a spent one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dht.errors import LocalError
from dht.statement import DIGEST_BYTES
from peer.numerics.outer_optimizer import OuterState, SpentMomentum, momentum_leaves

_ANCHOR, _MOMENTUM, _LEAVES = "anchor", "momentum", "momentum_leaves"


def tensors_of(state: OuterState) -> dict[str, Tensor]:
    """Return the tensors that `state_of` reads."""
    if isinstance(state.momentum, Tensor):
        return {_ANCHOR: state.anchor, _MOMENTUM: state.momentum}
    leaves = torch.frombuffer(bytearray(b"".join(state.momentum.leaves)), dtype=torch.uint8)
    return {_ANCHOR: state.anchor, _LEAVES: leaves.view(-1, DIGEST_BYTES)}


def state_of(tensors: Mapping[str, Tensor], keeps_momentum: bool) -> OuterState:
    """Return the state in these tensors; raises KeyError or LocalError.

    Earlier versions also wrote a momentum that no step needs; it is reduced to its leaf digests.
    """
    if _LEAVES not in tensors:
        momentum = tensors[_MOMENTUM]
        return OuterState(tensors[_ANCHOR], momentum if keeps_momentum else SpentMomentum(momentum_leaves(momentum)))
    if keeps_momentum:
        raise LocalError("a momentum that the run needs is missing")
    return OuterState(tensors[_ANCHOR], SpentMomentum(tuple(bytes(one.numpy()) for one in tensors[_LEAVES])))
