"""The outer step: Nesterov momentum on the merged outer gradient (design §6.4), the same bits on every machine.

Every multiplication and addition is one numpy operation over the elements, so it is rounded on its own: `alpha=`,
`addcmul` and `lerp` may fuse the two, which changes a fifth of the elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coordinator.wire.merkle import MerkleTree, merkle_tree
from dht.statement import digest_of

STATE_PIECE_BYTES = 256 * 1024
CHUNK_ELEMENTS = 1 << 15  # 128 KiB per operand: what is worked on stays in a core's cache


@dataclass(frozen=True, slots=True)
class OuterState:
    """Anchor Θ and momentum m of one fragment: float32[elements] each, on the CPU."""

    anchor: Tensor
    momentum: Tensor

    @classmethod
    def empty_like(cls, vector: Tensor) -> OuterState:
        """Room for a state, with undefined content."""
        return cls(torch.empty_like(vector), torch.empty_like(vector))

    @property
    def is_finite(self) -> bool:
        """Whether all of it are numbers that one can go on from."""
        return bool(self.anchor.isfinite().all() and self.momentum.isfinite().all())


def outer_step(
    state: OuterState, gradient: Tensor, learning_rate: float, momentum: float, out: OuterState | None = None
) -> OuterState:
    """m ← μm + Δ; Θ ← Θ - η(Δ + μm), in float32: into `out` if given; the inputs stay as they are.

    `gradient` Δ is anchor minus learner, so it is descended. The form is that of `torch.optim.SGD(nesterov=True)`.
    """
    new = OuterState.empty_like(state.anchor) if out is None else out
    eta, mu = np.float32(learning_rate), np.float32(momentum)
    anchor, decayed, delta = state.anchor.numpy(), state.momentum.numpy(), gradient.numpy()
    anchor_out, momentum_out = new.anchor.numpy(), new.momentum.numpy()
    for start in range(0, anchor.size, CHUNK_ELEMENTS):
        chunk = slice(start, start + CHUNK_ELEMENTS)
        velocity = np.multiply(decayed[chunk], mu, out=momentum_out[chunk])
        velocity += delta[chunk]
        step = velocity * mu
        step += delta[chunk]
        step *= eta
        np.subtract(anchor[chunk], step, out=anchor_out[chunk])
    return new


def state_tree(vector: Tensor) -> MerkleTree:
    """The Merkle tree over an anchor or a momentum, in pieces of STATE_PIECE_BYTES of little-endian float32.

    A download checks each piece as it arrives with `merkle.verify_leaf` (design §6.1).
    """
    return merkle_tree(state_bytes(vector), STATE_PIECE_BYTES)


def state_bytes(vector: Tensor) -> memoryview:
    """A fragment's bytes as they are hashed and served: little-endian float32, without a copy."""
    return vector.numpy().astype("<f4", copy=False).data.cast("B")


def digest_of_roots(anchor_root: bytes, momentum_root: bytes) -> bytes:
    """Names the state `(p, v)`: H(root(Θ) ‖ root(m)), so an export proves itself without the momentum (design §6.1)."""
    return digest_of(b"muster-state", anchor_root, momentum_root)


def state_digest(anchor: Tensor, momentum: Tensor) -> bytes:
    """`digest_of_roots` from the vectors themselves."""
    return digest_of_roots(state_tree(anchor).root, state_tree(momentum).root)
