"""Getting certified states from other peers, and giving them: piece by piece, verified before anybody uses them.

A state is its anchor, then its momentum, each cut into pieces; the digest in the certificate decides whether what came
is what was certified, whoever sent it (design §8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coordinator.certificate import Certificate
from dht.errors import NetworkError
from dht.identity import PeerId
from peer.anchors import Anchors
from peer.frames import StateAsk, StatePiece
from peer.outer_optimizer import OuterState, state_bytes, state_digest

PIECE_BYTES = 1 << 20
PIECES_IN_FLIGHT = 8
PIECE_TIMEOUT_SECONDS = 5.0

Post = Callable[[PeerId, StateAsk | StatePiece, bytes | memoryview], None]


def pieces_of(elements: int) -> int:
    """Pieces of an anchor; the momentum has as many."""
    return max(1, -(-elements * 4 // PIECE_BYTES))


class StateTransfer:
    """Both ends of state transfer at one peer."""

    def __init__(self, anchors: Anchors, post: Post) -> None:
        self._anchors = anchors
        self._post = post
        self._waiting: dict[tuple[PeerId, bytes, int], asyncio.Future[bytes]] = {}

    # -- giving

    def serve(self, sender: PeerId, ask: StateAsk) -> None:
        """Answer with the piece, or with an empty one if we do not hold that state."""
        layouts = self._anchors.layouts
        known = ask.fragment < len(layouts)
        state = self._anchors.served(ask.fragment, ask.certificate) if known else None
        pieces = 2 * pieces_of(layouts[ask.fragment].elements) if known else 0
        payload: bytes | memoryview = b""
        if state is not None and ask.piece < pieces:
            half, index = divmod(ask.piece, pieces // 2)
            view = state_bytes(state.momentum if half else state.anchor)
            payload = view[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
        answer = StatePiece(fragment=ask.fragment, certificate=ask.certificate, piece=ask.piece, pieces=pieces)
        self._post(sender, answer, payload)

    # -- getting

    def receive(self, sender: PeerId, piece: StatePiece, payload: bytes) -> None:
        """A piece that we may be waiting for."""
        waiting = self._waiting.get((sender, piece.certificate, piece.piece))
        if waiting is not None and not waiting.done():
            waiting.set_result(payload)

    async def fetch(self, certificate: Certificate, holders: Sequence[PeerId]) -> OuterState:
        """The certified state, from the first holder that gives it whole; raises NetworkError if none does."""
        for holder in holders:
            try:
                state = await self._fetch_from(certificate, holder)
            except NetworkError:
                continue
            if state_digest(state.anchor, state.momentum) == certificate.state:
                return state
        raise NetworkError(f"no holder gave version {certificate.version} of fragment {certificate.fragment}")

    async def _fetch_from(self, certificate: Certificate, holder: PeerId) -> OuterState:
        elements = self._anchors.layouts[certificate.fragment].elements
        half = pieces_of(elements)
        gate = asyncio.Semaphore(PIECES_IN_FLIGHT)

        async def one(piece: int) -> bytes:
            async with gate:
                return await self._piece(certificate, holder, piece)

        tasks = [asyncio.ensure_future(one(piece)) for piece in range(2 * half)]
        try:
            pieces = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return OuterState(_vector(pieces[:half], elements), _vector(pieces[half:], elements))

    async def _piece(self, certificate: Certificate, holder: PeerId, piece: int) -> bytes:
        key = (holder, certificate.digest, piece)
        self._waiting[key] = asyncio.get_running_loop().create_future()
        ask = StateAsk(fragment=certificate.fragment, certificate=certificate.digest, piece=piece)
        try:
            self._post(holder, ask, b"")
            payload = await asyncio.wait_for(self._waiting[key], PIECE_TIMEOUT_SECONDS)
        except TimeoutError:
            raise NetworkError(f"{holder} does not send piece {piece}") from None
        finally:
            del self._waiting[key]
        if not payload:
            raise NetworkError(f"{holder} does not hold the state")
        return payload


def _vector(pieces: Sequence[bytes], elements: int) -> Tensor:
    data = bytearray(b"".join(pieces))
    if len(data) != elements * 4:
        raise NetworkError("a state of the wrong size")
    return torch.frombuffer(data, dtype=torch.float32)
