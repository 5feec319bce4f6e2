"""One certified state on its way, in pieces, from several holders at once (design §8). Sans-IO.

First come the leaf digests of the state's two Merkle trees, which prove themselves against the certificate; after that
every piece proves itself, so no holder is believed and none is needed whole: one that stalls, lies or does not hold
the state is left, and its pieces are asked of others. What has arrived stays when all holders fail, for the next try.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

from coordinator.merkle import leaf_count, leaf_digest, root_of_leaves
from dht.identity import PeerId
from peer.outer_optimizer import STATE_PIECE_BYTES, OuterState, digest_of_roots

HOLDERS_ASKED_MAX = 4  # at once; the others are in reserve
PIECES_IN_FLIGHT = 8  # per holder: 2 MiB
STALL_SECONDS = 5.0  # a holder that answers nothing for so long is left
TURN_SECONDS = 10.0  # after so long it is the turn of somebody in reserve: a slow holder keeps no place for good
ASKERS_MAX = 2  # holders that one piece may be asked of at once, when nothing else is left to ask for
DIGEST_BYTES = 32

Piece = int | None
"""Index of a piece, the anchor's before the momentum's; None stands for the leaf digests."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask this holder for that piece."""

    holder: PeerId
    piece: Piece


@dataclass(slots=True)
class Holder:
    """Somebody who may hold the state."""

    in_flight: set[Piece] = field(default_factory=set)
    heard_at: float = 0.0  # when it last answered, or was first asked after a rest
    turn_ends_at: float = math.inf  # while it is not its turn

    def stalls_at(self) -> float:
        """When we lose patience; infinite while nothing is asked."""
        return self.heard_at + STALL_SECONDS if self.in_flight else math.inf


class Download:
    """A state of `elements` values per half whose digest is `state`."""

    def __init__(self, state: bytes, elements: int) -> None:
        self._state = state
        half_bytes = 4 * elements
        self._per_half = leaf_count(half_bytes, STATE_PIECE_BYTES)
        self._halves = (bytearray(half_bytes), bytearray(half_bytes))
        self._leaves: tuple[bytes, ...] = ()
        self._missing: set[int] = set(range(2 * self._per_half))
        self._unasked = list(reversed(range(2 * self._per_half)))  # the next one last
        self._holders: dict[PeerId, Holder] = {}
        self.bytes_total = 2 * half_bytes
        self.bytes_done = 0

    # -- whom to ask

    def offer(self, holders: Sequence[PeerId]) -> None:
        """These are said to hold the state; those that failed before get another chance."""
        for holder in holders:
            self._holders.setdefault(holder, Holder())

    @property
    def done(self) -> bool:
        """Whether every piece is there, and proven."""
        return bool(self._leaves) and not self._missing

    @property
    def hopeless(self) -> bool:
        """Nobody is left to ask."""
        return not self.done and not self._holders

    @property
    def sources(self) -> int:
        """Holders that we are asking now."""
        return sum(bool(holder.in_flight) for holder in self._holders.values())

    def asks(self, now: float) -> list[Ask]:
        """What to ask for now; whoever stalls is left first."""
        for peer in [peer for peer, holder in self._holders.items() if now >= holder.stalls_at()]:
            self._leave(peer)
        self._take_turns(now)
        found: list[Ask] = []
        for peer, holder in islice(self._holders.items(), HOLDERS_ASKED_MAX):
            holder.turn_ends_at = min(holder.turn_ends_at, now + TURN_SECONDS)
            for piece in self._wanted(holder):
                if not holder.in_flight:
                    holder.heard_at = now
                holder.in_flight.add(piece)
                found.append(Ask(peer, piece))
        return found

    def _take_turns(self, now: float) -> None:
        """Whose turn is over goes behind those in reserve; it still owes what it was asked for."""
        if len(self._holders) <= HOLDERS_ASKED_MAX:
            return
        for peer in [peer for peer, holder in self._holders.items() if now >= holder.turn_ends_at]:
            holder = self._holders[peer] = self._holders.pop(peer)
            holder.turn_ends_at = math.inf

    def _wanted(self, holder: Holder) -> Sequence[Piece]:
        """What this holder has room for: pieces that nobody was asked for, then those that few were asked for."""
        if not self._leaves:
            return [] if None in holder.in_flight else [None]
        room = max(PIECES_IN_FLIGHT - len(holder.in_flight), 0)
        if self._unasked:
            return [self._unasked.pop() for _ in range(min(room, len(self._unasked)))]
        askers = Counter[Piece]()
        for other in self._holders.values():
            askers.update(dict.fromkeys(other.in_flight, other.turn_ends_at < math.inf))
        slow = [piece for piece in askers if askers[piece] < ASKERS_MAX and piece not in holder.in_flight]
        return [piece for piece in slow if piece in self._missing][:room]

    def next_deadline(self) -> float:
        """When somebody will have stalled."""
        return min((holder.stalls_at() for holder in self._holders.values()), default=math.inf)

    # -- what comes

    def receive(self, peer: PeerId, piece: Piece, payload: bytes, now: float) -> None:
        """An answer; whatever was not asked of this peer is ignored, and whoever sends a false one is left."""
        holder = self._holders.get(peer)
        if holder is None or piece not in holder.in_flight:
            return
        holder.in_flight.discard(piece)
        holder.heard_at = now
        if not (self._take_leaves(payload) if piece is None else self._take_piece(piece, payload)):
            if piece is not None:
                holder.in_flight.add(piece)  # still to be had from somebody else
            self._leave(peer)

    def _leave(self, peer: PeerId) -> None:
        """Ask this holder for nothing more, and others for what it owes us."""
        owed = self._holders.pop(peer).in_flight
        for other in self._holders.values():
            owed -= other.in_flight
        self._unasked += sorted((piece for piece in owed if piece in self._missing), reverse=True)

    def _take_leaves(self, payload: bytes) -> bool:
        if self._leaves:
            return True
        if len(payload) != 2 * self._per_half * DIGEST_BYTES:
            return False
        leaves = [payload[start : start + DIGEST_BYTES] for start in range(0, len(payload), DIGEST_BYTES)]
        roots = root_of_leaves(leaves[: self._per_half]), root_of_leaves(leaves[self._per_half :])
        if digest_of_roots(*roots) != self._state:
            return False
        self._leaves = tuple(leaves)
        return True

    def _take_piece(self, piece: int, payload: bytes) -> bool:
        if leaf_digest(payload) != self._leaves[piece]:
            return False
        if piece in self._missing:
            self._missing.discard(piece)
            half, index = divmod(piece, self._per_half)
            start = index * STATE_PIECE_BYTES
            self._halves[half][start : start + len(payload)] = payload
            self.bytes_done += len(payload)
        return True

    def state(self) -> OuterState:
        """The whole state, once `done`."""
        if not self.done:
            raise ValueError("the state is not here yet")
        anchor, momentum = (torch.frombuffer(half, dtype=torch.float32) for half in self._halves)
        return OuterState(anchor, momentum)
