"""Serves certified states, and the steps that led to them, to other peers (design §8)."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable

from coordinator.wire.merkle import leaf_count
from dht.allowance import Allowance
from dht.identity import PeerId
from dht.units import DAY_SECONDS
from peer.net.frames import StateAsk, StatePiece
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES, OuterState, SpentMomentum, state_bytes
from peer.storage.anchors import Anchors
from peer.sync.base_file import ServedFile
from peer.sync.upload_scheduler import GIVEN_BYTES_PER_SECOND, UploadScheduler

SERVED_MAX = 4  # per fragment, including one that is being downloaded and version 0; leaf digests of all are cached

Give = Callable[[PeerId, StatePiece, bytes | memoryview], None]


def first_of_step(anchors: Anchors, fragment: int) -> int:
    """Return the index of a step's first piece: they are numbered after those of the state's two halves."""
    return 2 * leaf_count(4 * anchors.layouts[fragment].elements, STATE_PIECE_BYTES)


class StateServer:
    """The serving side of state transfer at one peer."""

    def __init__(self, anchors: Anchors, post: Give) -> None:
        self._anchors = anchors
        self._post = post
        self._leaves: OrderedDict[bytes, bytes] = OrderedDict()
        self._uploads = UploadScheduler()
        self._of_day = Allowance(math.inf, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._files: dict[bytes, ServedFile] = {}

    def hand_out(self, root: bytes, file: ServedFile) -> None:
        """Also serve this file, by the name of its root."""
        self._files[root] = file

    def give_at_most(self, bytes_per_second: float, bytes_per_day: float = math.inf) -> None:
        """Limit the rate of states to this and the usual rate, and their bytes to a daily amount, available at once."""
        self._uploads.bytes_per_second = min(bytes_per_second, GIVEN_BYTES_PER_SECOND)
        self._of_day = Allowance(bytes_per_day / DAY_SECONDS, bytes_per_day)

    def serve(self, sender: PeerId, ask: StateAsk) -> None:
        """Answer a request, now or when its turn comes: with the piece, or with nothing if we do not hold that state.

        Also answers with nothing once the daily amount is used up: any peer can ask, and the rounds need the rest of
        the owner's daily upload.
        """
        if self._of_day.wait_seconds(asyncio.get_running_loop().time()):
            self._post(sender, StatePiece(fragment=ask.fragment, certificate=ask.certificate, piece=ask.piece), b"")
            return
        self._uploads.ask(sender, ask)
        if self._timer is None:
            self._give()

    def gone(self, peer: PeerId) -> None:
        """Handle that our streams to this peer broke: answers would not reach it."""
        self._uploads.forget(peer)

    def _give(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        while (chosen := self._uploads.next(loop.time())) is not None:
            self._uploads.gave(self._answer(*chosen))
        wait_seconds = self._uploads.wait_seconds()
        if wait_seconds is not None:
            self._timer = loop.call_later(wait_seconds, self._give)

    def close(self) -> None:
        """Stop serving."""
        if self._timer is not None:
            self._timer.cancel()

    def _answer(self, sender: PeerId, ask: StateAsk) -> int:
        """Answer a request and return the number of bytes sent."""
        payload = self._payload(sender, ask)
        self._post(sender, StatePiece(fragment=ask.fragment, certificate=ask.certificate, piece=ask.piece), payload)
        self._of_day.take(len(payload), asyncio.get_running_loop().time())
        return len(payload)

    def _payload(self, sender: PeerId, ask: StateAsk) -> bytes | memoryview:
        if (file := self._files.get(ask.certificate)) is not None:
            return file.piece(ask.piece)
        if ask.fragment >= len(self._anchors.layouts):
            return b""
        anchors, first = self._anchors, first_of_step(self._anchors, ask.fragment)
        if ask.piece is not None and ask.piece >= first:
            anchors.pins.release(ask.fragment, sender)
            return _piece(memoryview(anchors.step(ask.fragment, ask.certificate)), ask.piece - first)
        state = anchors.served(ask.fragment, ask.certificate)
        if state is None:
            return b""
        if ask.piece is None:
            return self._leaves_of(state, ask.certificate)
        half, index = divmod(ask.piece, first // 2)
        vector = state.momentum if half else state.anchor
        if isinstance(vector, SpentMomentum):
            return b""
        anchors.pins.keep(ask.fragment, ask.certificate, sender)
        return _piece(state_bytes(vector), index)

    def _leaves_of(self, state: OuterState, certificate: bytes) -> bytes:
        if certificate not in self._leaves:
            self._leaves[certificate] = b"".join(state.leaves)
            while len(self._leaves) > SERVED_MAX * len(self._anchors.layouts):
                self._leaves.popitem(last=False)
        return self._leaves[certificate]


def _piece(view: memoryview, index: int) -> memoryview:
    return view[index * STATE_PIECE_BYTES : (index + 1) * STATE_PIECE_BYTES]
