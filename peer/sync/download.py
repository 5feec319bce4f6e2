"""One download: a state from the first request to the proven whole (design §8). Sans-IO.

First come the leaf digests of the state's two Merkle trees, proven by the certificate. After that every piece proves
itself, from any sender and at any time. Of a momentum that no step needs, only the leaf digests are kept. A file is
downloaded in the same way (`peer.sync.base_file`). `peer.sync.download_scheduler` decides which peer to ask for which
piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from coordinator.wire.merkle import leaf_count, long_leaf_digest, root_of_leaves
from dht.statement import DIGEST_BYTES
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES, OuterState, SpentMomentum, digest_of_roots

Piece = int | None
"""Index of a piece, the anchor's before the momentum's; None stands for the leaf digests."""

Ended = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A state to download: `name`, by which holders know it, is its certificate's digest, or for version 0 its own."""

    fragment: int
    version: int
    name: bytes
    state: bytes


class Download(ABC):
    """A download of `pieces` that prove themselves by `leaves` digests, which may cover more than is kept."""

    def __init__(self, name: bytes, pieces: int, leaves: int, bytes_total: int) -> None:
        self.name = name
        self.ended: Ended | None = None  # called at the end, if a caller waits
        self.leaves: tuple[bytes, ...] = ()
        self._leaf_count = leaves
        self._pieces = pieces
        self.missing = set(range(pieces))
        self._unasked = OrderedDict.fromkeys(range(pieces))
        self.bytes_total = bytes_total
        self.bytes_done = 0

    @abstractmethod
    def _is_named(self, leaves: tuple[bytes, ...]) -> bool:
        """Return whether these are the digests of what is wanted."""

    @abstractmethod
    def _keep(self, piece: int, payload: bytes) -> None:
        """Keep a proven piece."""

    @property
    def running(self) -> bool:
        """Whether a caller waits for it and some of it is missing."""
        return self.ended is not None and not self.done

    @property
    def done(self) -> bool:
        """Whether every piece is here and proven."""
        return self.proves and not self.missing

    @property
    def proves(self) -> bool:
        """Whether the leaf digests are here, which prove the pieces."""
        return bool(self.leaves)

    @property
    def begun(self) -> bool:
        """Whether a piece is here or has been requested."""
        return len(self._unasked) < self._pieces

    # -- pieces not requested

    def next_unasked(self) -> int | None:
        """Return a piece that was not requested from any peer, and mark it as requested."""
        return self._unasked.popitem(last=False)[0] if self._unasked else None

    def give_back(self, piece: Piece) -> None:
        """Mark a piece as no longer requested from any peer."""
        if piece in self.missing:
            self._unasked[piece] = None

    # -- answers

    def take(self, piece: Piece, payload: bytes) -> bool:
        """Take an answer and return whether it is valid; a piece that is here already is not checked."""
        if piece is None:
            return self._take_leaves(payload)
        return piece not in self.missing or not self.proves or self._take_piece(piece, payload)

    def _take_leaves(self, payload: bytes) -> bool:
        if self.leaves:
            return payload == b"".join(self.leaves)
        if len(payload) != self._leaf_count * DIGEST_BYTES:
            return False
        leaves = tuple(payload[start : start + DIGEST_BYTES] for start in range(0, len(payload), DIGEST_BYTES))
        if not self._is_named(leaves):
            return False
        self.leaves = leaves
        return True

    def _take_piece(self, piece: int, payload: bytes) -> bool:
        if long_leaf_digest(payload) != self.leaves[piece]:
            return False
        self._keep(piece, payload)
        self._count(piece, len(payload))
        return True

    def _count(self, piece: int, size_bytes: int) -> None:
        """Record that this piece is here."""
        self.missing.discard(piece)
        self._unasked.pop(piece, None)
        self.bytes_done += size_bytes


class StateDownload(Download):
    """The download of a state of `elements` values per half. `halves`: 2 for both, 1 where the momentum is spent."""

    def __init__(self, wanted: Wanted, elements: int, halves: int = 2) -> None:
        half_bytes = 4 * elements
        self._per_half = leaf_count(half_bytes, STATE_PIECE_BYTES)
        super().__init__(wanted.name, halves * self._per_half, 2 * self._per_half, halves * half_bytes)
        self._state = wanted.state
        self._halves = [bytearray(half_bytes) for _ in range(halves)]

    def _is_named(self, leaves: tuple[bytes, ...]) -> bool:
        roots = root_of_leaves(leaves[: self._per_half]), root_of_leaves(leaves[self._per_half :])
        return digest_of_roots(*roots) == self._state

    def _keep(self, piece: int, payload: bytes) -> None:
        half, index = divmod(piece, self._per_half)
        start = index * STATE_PIECE_BYTES
        self._halves[half][start : start + len(payload)] = payload

    def state(self) -> OuterState:
        """Return the whole state, once `done`."""
        if not self.done:
            raise ValueError("the state is not here yet")
        anchor, *momenta = (torch.frombuffer(half, dtype=torch.float32) for half in self._halves)
        return OuterState(anchor, momenta[0] if momenta else SpentMomentum(self.leaves[self._per_half :]))
