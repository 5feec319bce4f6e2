"""Downloads the steps that led to versions, each from one holder at a minimum rate (design §8).

They are unproven until applied.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.wire.merkle import leaf_count
from dht.identity import PeerId
from peer.net.frames import StateAsk, StatePiece
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES
from peer.storage.anchors import Anchors
from peer.sync.download_scheduler import HOLDERS_ASKED_MAX, HOLDERS_KNOWN_MAX, DownloadScheduler
from peer.sync.rate import TransferRate
from peer.sync.source import ANSWER_SECONDS, PIECES_IN_FLIGHT, STALL_SECONDS, patience_seconds
from peer.sync.state_server import first_of_step

STEP_BYTES_PER_SECOND_MIN = 128 << 10  # a holder that sends a step more slowly is dropped, where others are quicker

Post = Callable[[PeerId, StateAsk | StatePiece, bytes | memoryview], None]


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """The pieces of a step of this length that were requested from a holder; invalid ones are kept as empty."""

    wanted: range
    length_bytes: int
    found: dict[int, bytes] = field(default_factory=dict)
    come: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, piece: int, payload: bytes) -> None:
        """Take a piece; it may come twice if it was requested again."""
        if piece in self.found:
            return
        before_bytes = (piece - self.wanted.start) * STATE_PIECE_BYTES
        whole = len(payload) == min(STATE_PIECE_BYTES, self.length_bytes - before_bytes)
        self.found[piece] = payload if whole else b""
        self.come.set()

    def break_off(self) -> None:
        """End the wait: no more pieces will come."""
        for piece in self.wanted:
            self.found.setdefault(piece, b"")
        self.come.set()


class StepClient:
    """Shares the line with the states of `downloads`; `changed` is called when a step frees the line for them."""

    def __init__(
        self,
        anchors: Anchors,
        post: Post,
        downloads: DownloadScheduler,
        inflow: TransferRate,
        changed: Callable[[], None],
    ) -> None:
        self._anchors = anchors
        self._post = post
        self._downloads = downloads
        self._inflow = inflow
        self._changed = changed
        self._arrivals: dict[tuple[PeerId, bytes], _Arrivals] = {}  # by holder and certificate
        self._turns = asyncio.Condition()
        self._under_way = 0
        self._last_stalled = False
        self._stalled: OrderedDict[PeerId, None] = OrderedDict()  # holders that were too slow, the latest last

    def gone(self, peer: PeerId) -> None:
        """Handle that our streams to this peer broke."""
        for (holder, _), arrivals in self._arrivals.items():
            if holder == peer:
                arrivals.break_off()

    def receive(self, sender: PeerId, piece: StatePiece, payload: bytes) -> bool:
        """Take a piece; return whether it belongs to a step that we wait for."""
        arrivals = self._arrivals.get((sender, piece.certificate))
        if arrivals is None or piece.piece is None or piece.piece not in arrivals.wanted:
            return False
        self._inflow.add(len(payload), asyncio.get_running_loop().time())
        arrivals.take(piece.piece, payload)
        return True

    def has_stalled(self, holder: PeerId) -> bool:
        """Whether the holder was too slow at the last request for a step."""
        return holder in self._stalled

    def leaves_room(self, now: float) -> bool:
        """Whether more pieces of states may be requested. Steps are short and come first, unless they have stalled."""
        crowded = self._under_way + HOLDERS_ASKED_MAX > self._shares(now)
        return not (self._under_way and crowded) or self._last_stalled

    async def fetch(self, certificate: Certificate, holder: PeerId, length_bytes: int) -> bytes | None:
        """Return the step that led to this state as one holder tells it, unproven; None if it does not, or is too slow.

        Waits until the line has room, because only then is a minimum rate fair to the holder.
        """
        loop, stalled_before = asyncio.get_running_loop(), self.has_stalled(holder)
        async with self._turns:
            await self._turns.wait_for(lambda: self._under_way < min(self._shares(loop.time()), HOLDERS_ASKED_MAX))
            self._under_way += 1
        try:
            if self.has_stalled(holder) and not stalled_before:
                return None  # another step stalled there while this one waited
            return await self._fetch(certificate, holder, length_bytes)
        finally:
            self._under_way -= 1
            self._changed()
            async with self._turns:
                self._turns.notify_all()

    def _shares(self, now: float) -> int:
        """Return how many steps may come at once: one, or more if all of them are then still fast enough."""
        return 1 + int((self._inflow.rate(now) or 0.0) / (2 * self._rate_min()))

    def _rate_min(self) -> float:
        """Return the minimum rate of a step in bytes per second.

        If most holders take longer than usual for a piece, the line is slow or they serve many peers, so the minimum is
        lower. The whole state has no time limit, but it would not come any faster then, and would be started again and
        again.
        """
        return STEP_BYTES_PER_SECOND_MIN * ANSWER_SECONDS / self._downloads.answer_seconds()

    async def _fetch(self, certificate: Certificate, holder: PeerId, length_bytes: int) -> bytes | None:
        first, wanted = first_of_step(self._anchors, certificate.fragment), leaf_count(length_bytes, STATE_PIECE_BYTES)
        key = holder, certificate.digest
        arrivals = self._arrivals[key] = _Arrivals(range(first, first + wanted), length_bytes)
        stall_seconds = patience_seconds(self._downloads.answer_seconds())
        stall_seconds += min(self._downloads.seconds_owed(), STALL_SECONDS)
        self._stalled.pop(holder, None)
        try:
            async with asyncio.timeout(stall_seconds + length_bytes / self._rate_min()):
                told = await self._gather(certificate, holder, arrivals, stall_seconds)
            self._last_stalled = self._last_stalled and told is None
            return told
        except TimeoutError:
            self._stalled[holder], self._last_stalled = None, True
            while len(self._stalled) > HOLDERS_KNOWN_MAX:
                self._stalled.popitem(last=False)
            return None
        finally:
            if self._arrivals.get(key) is arrivals:  # else a later try waits there
                del self._arrivals[key]

    async def _gather(
        self, certificate: Certificate, holder: PeerId, arrivals: _Arrivals, stall_seconds: float
    ) -> bytes | None:
        """Request the pieces in windows and join them; raises TimeoutError if the holder stalls."""
        found = arrivals.found
        for start in range(arrivals.wanted.start, arrivals.wanted.stop, PIECES_IN_FLIGHT):
            window = range(start, min(start + PIECES_IN_FLIGHT, arrivals.wanted.stop))
            for piece in window:
                ask = StateAsk(fragment=certificate.fragment, certificate=certificate.digest, piece=piece)
                self._post(holder, ask, b"")
            while not all(piece in found for piece in window):
                arrivals.come.clear()
                async with asyncio.timeout(stall_seconds):
                    await arrivals.come.wait()
                if not all(found.values()):
                    return None
        return b"".join(found[piece] for piece in arrivals.wanted)
