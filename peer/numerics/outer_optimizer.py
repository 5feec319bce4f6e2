"""The outer step: Nesterov momentum on the merged outer gradient (design §6.4), the same bits on every machine.

Every multiplication and addition is a separate numpy operation over the elements, so it is rounded separately.
`alpha=`, `addcmul` and `lerp` may fuse the two, which changes a fifth of the elements.

Without decay (μ = 0) the momentum is the last outer gradient, and no later step reads it. State digests cover it all
the same, so its leaf digests are kept instead: 32 bytes for a quarter of a megabyte (docs/adr/0058).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator.wire.merkle import MerkleTree, long_leaf_digest, merkle_tree, root_of_leaves
from dht.statement import digest_of
from peer.numerics.core_pool import ONE_CORE, Cores

STATE_PIECE_BYTES = 256 * 1024
CHUNK_ELEMENTS = 1 << 15  # 128 KiB per operand, so that the working set stays in a core's cache
_PIECE_ELEMENTS = STATE_PIECE_BYTES // 4

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpentMomentum:
    """A momentum that no later step reads: only the leaf digests of its tree."""

    leaves: tuple[bytes, ...]

    @classmethod
    def of(cls, gradients: Iterable[Tensor | int], cores: Cores = ONE_CORE) -> SpentMomentum:
        """Return the momentum after a step without decay: Δ in order, in parts; a number stands for that many zeros.

        Zeros are positive: the sign of 0·m would depend on a momentum that is gone.
        """
        parts = [np.broadcast_to(np.float32(0), one) if isinstance(one, int) else one.numpy() for one in gradients]
        stops = list(accumulate(map(len, parts)))

        def leaf(first: int) -> bytes:
            piece = np.empty(min(_PIECE_ELEMENTS, (stops or [0])[-1] - first), np.float32)  # the parts fill it
            for values, stop in zip(parts, stops, strict=True):
                begin = stop - len(values) - first  # of this part, counted from the piece's first element
                inside = slice(max(begin, 0), max(min(stop - first, len(piece)), 0))
                if inside.start < inside.stop:
                    np.add(values[inside.start - begin : inside.stop - begin], np.float32(0), out=piece[inside])
            return long_leaf_digest(piece.data.cast("B"))

        return cls(tuple(cores.each(leaf, range(0, max(1, (stops or [0])[-1]), _PIECE_ELEMENTS))))


Momentum = Tensor | SpentMomentum


@dataclass(frozen=True, slots=True)
class OuterState:
    """Anchor Θ and momentum m of one fragment: float32[elements] each, on the CPU; m may be spent."""

    anchor: Tensor
    momentum: Momentum

    @classmethod
    def begin(cls, anchor: Tensor, momentum: float) -> OuterState:
        """Return version 0 in a run with this μ."""
        return cls(anchor, torch.zeros_like(anchor) if momentum else SpentMomentum.of([len(anchor)]))

    @property
    def velocity(self) -> Tensor:
        """The momentum of a state that keeps it; raises ValueError for a spent one."""
        if isinstance(self.momentum, SpentMomentum):
            raise ValueError("a run without outer momentum keeps none")
        return self.momentum

    @property
    def leaves(self) -> tuple[bytes, ...]:
        """Leaf digests of both halves, which prove each piece of a download."""
        return state_tree(self.anchor).leaves + momentum_leaves(self.momentum)

    @property
    def digest(self) -> bytes:
        """`state_digest` of both halves, hashed now."""
        return self.digest_on(ONE_CORE)

    def digest_on(self, cores: Cores) -> bytes:
        """Return `digest`, hashed on several cores."""
        return state_digest(self.anchor, self.momentum, cores)

    @property
    def is_finite(self) -> bool:
        """Whether all values of the anchor and a kept momentum are finite."""
        return all(bool(one.isfinite().all()) for one in (self.anchor, self.momentum) if isinstance(one, Tensor))


def outer_step(
    state: OuterState, gradient: Tensor, learning_rate: float, momentum: float, out: OuterState | None = None
) -> OuterState:
    """Compute m ← μm + Δ; Θ ← Θ - η(Δ + μm), in float32; into `out` if given. The inputs stay unchanged.

    `gradient` Δ is anchor minus learner, so it is descended. The form is that of `torch.optim.SGD(nesterov=True)`.
    """
    if not momentum:
        anchor = torch.empty_like(state.anchor) if out is None else out.anchor
        descend(anchor, state.anchor, gradient, learning_rate)
        return OuterState(anchor, SpentMomentum.of([gradient]))
    new = OuterState(torch.empty_like(state.anchor), torch.empty_like(state.anchor)) if out is None else out
    eta, mu = np.float32(learning_rate), np.float32(momentum)
    values, decayed, delta = state.anchor.numpy(), state.velocity.numpy(), gradient.numpy()
    anchor_out, momentum_out = new.anchor.numpy(), new.velocity.numpy()
    for chunk in _chunks(values):
        velocity = np.multiply(decayed[chunk], mu, out=momentum_out[chunk])
        velocity += delta[chunk]
        _subtract(anchor_out[chunk], values[chunk], velocity * mu, delta[chunk], eta)
    return new


def descend(new: Tensor, anchor: Tensor, gradient: Tensor, learning_rate: float) -> None:
    """Write the anchor that `outer_step` gives for μ = 0 into `new`, float32[elements] as the others."""
    eta, zero = np.float32(learning_rate), np.float32(0)
    values, delta, anchor_out = anchor.numpy(), gradient.numpy(), new.numpy()
    for chunk in _chunks(values):
        velocity = delta[chunk] + zero
        velocity *= zero  # as with momentum: values that are not finite must not become finite
        _subtract(anchor_out[chunk], values[chunk], velocity, delta[chunk], eta)


def _subtract(out: Floats, anchor: Floats, decayed: Floats, delta: Floats, eta: np.float32) -> None:
    """Compute Θ - η(Δ + μm); overwrites `decayed`."""
    decayed += delta
    decayed *= eta
    np.subtract(anchor, decayed, out=out)


def _chunks(values: Floats) -> Iterable[slice]:
    return (slice(start, start + CHUNK_ELEMENTS) for start in range(0, values.size, CHUNK_ELEMENTS))


def state_tree(vector: Tensor) -> MerkleTree:
    """Return the Merkle tree over an anchor or a momentum, in pieces of STATE_PIECE_BYTES of little-endian float32.

    A download checks each arriving piece against its leaf's digest (design §6.1).
    """
    return merkle_tree(state_bytes(vector), STATE_PIECE_BYTES)


def momentum_leaves(momentum: Momentum) -> tuple[bytes, ...]:
    """Return the leaf digests of a momentum's tree."""
    return momentum.leaves if isinstance(momentum, SpentMomentum) else state_tree(momentum).leaves


def momentum_root(momentum: Momentum, cores: Cores = ONE_CORE) -> bytes:
    """Return the root of a momentum's tree."""
    return root_of_leaves(momentum.leaves) if isinstance(momentum, SpentMomentum) else _root(momentum, cores)


def _root(vector: Tensor, cores: Cores) -> bytes:
    """Return the root of `state_tree`, with leaves hashed on several cores."""
    data = state_bytes(vector)
    starts = range(0, max(1, len(data)), STATE_PIECE_BYTES)
    return root_of_leaves(cores.each(lambda start: long_leaf_digest(data[start : start + STATE_PIECE_BYTES]), starts))


def state_bytes(vector: Tensor) -> memoryview:
    """Return a fragment's bytes as they are hashed and served: little-endian float32, without a copy."""
    return vector.numpy().astype("<f4", copy=False).data.cast("B")


def digest_of_roots(anchor_root: bytes, momentum_root: bytes) -> bytes:
    """Return the name of the state `(p, v)`: H(root(Θ) ‖ root(m)).

    So an export proves itself without the momentum (design §6.1).
    """
    return digest_of(b"muster-state", anchor_root, momentum_root)


def state_digest(anchor: Tensor, momentum: Momentum, cores: Cores = ONE_CORE) -> bytes:
    """Return `digest_of_roots` computed from the halves."""
    return digest_of_roots(_root(anchor, cores), momentum_root(momentum, cores))
