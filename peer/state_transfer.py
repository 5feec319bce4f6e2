"""Getting certified states from other peers, and giving them: the shell around `peer.download` (design §8)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coordinator.certificate import Certificate
from coordinator.merkle import leaf_count
from dht.errors import NetworkError
from dht.identity import PeerId
from peer.anchors import STATES_SERVED, Anchors
from peer.donations import GIVEN_BYTES_PER_SECOND, Donations
from peer.download import PIECES_IN_FLIGHT, STALL_SECONDS, Download
from peer.frames import StateAsk, StatePiece
from peer.inflow import Inflow
from peer.outer_optimizer import STATE_PIECE_BYTES, OuterState, state_bytes, state_tree

DOWNLOADS_KEPT = 4  # unfinished ones, for a later try with other holders
SERVED_MAX = STATES_SERVED + 1  # of each fragment, version 0 with them: the leaf digests of all are kept
STEP_BYTES_PER_SECOND_MIN = 128 << 10  # from whoever tells a step more slowly we take none

Post = Callable[[PeerId, StateAsk | StatePiece, bytes | memoryview], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A state to get: `name` is what holders know it by, the digest of its certificate or, of version 0, its own."""

    fragment: int
    version: int
    name: bytes
    state: bytes


@dataclass(frozen=True, slots=True)
class _Steps:
    """Pieces of a step of so many bytes that a holder was asked for, and those that came."""

    wanted: range
    length_bytes: int
    found: asyncio.Queue[tuple[int, bytes]] = field(default_factory=lambda: asyncio.Queue(PIECES_IN_FLIGHT))

    def is_whole(self, piece: int, payload: bytes) -> bool:
        """Whether this is as long as that piece is."""
        before_bytes = (piece - self.wanted.start) * STATE_PIECE_BYTES
        return len(payload) == min(STATE_PIECE_BYTES, self.length_bytes - before_bytes)


class StateTransfer:
    """Both ends of state transfer at one peer."""

    def __init__(self, anchors: Anchors, post: Post) -> None:
        self._anchors = anchors
        self._post = post
        self._downloads: OrderedDict[bytes, Download] = OrderedDict()  # by certificate
        self._arrivals: dict[bytes, asyncio.Event] = {}  # of those that somebody waits for
        self._steps: dict[tuple[PeerId, bytes], _Steps] = {}  # by holder and certificate
        self._leaves: OrderedDict[bytes, bytes] = OrderedDict()
        self._inflow = Inflow()
        self._donations = Donations()
        self._giving: asyncio.TimerHandle | None = None

    # -- giving

    def give_at_most(self, bytes_per_second: float) -> None:
        """Give states no faster than this, nor than is usual."""
        self._donations.bytes_per_second = min(bytes_per_second, GIVEN_BYTES_PER_SECOND)

    def serve(self, sender: PeerId, ask: StateAsk) -> None:
        """Answer, now or when it is the asker's turn: with the piece, or with nothing if we do not hold that state."""
        self._donations.ask(sender, ask)
        if self._giving is None:
            self._give()

    def gone(self, peer: PeerId) -> None:
        """Our streams to this peer have broken: what it asked for would not reach it."""
        self._donations.forget(peer)

    def _give(self) -> None:
        loop, self._giving = asyncio.get_running_loop(), None
        while (chosen := self._donations.next(loop.time())) is not None:
            self._donations.gave(self._answer(*chosen))
        wait_seconds = self._donations.wait_seconds()
        if wait_seconds is not None:
            self._giving = loop.call_later(wait_seconds, self._give)

    def close(self) -> None:
        """Give nothing more."""
        if self._giving is not None:
            self._giving.cancel()

    def _answer(self, sender: PeerId, ask: StateAsk) -> int:
        """Bytes that went out."""
        known = ask.fragment < len(self._anchors.layouts)
        state = self._anchors.served(ask.fragment, ask.certificate) if known else None
        payload = b"" if state is None else self._payload(state, ask)
        self._post(sender, StatePiece(fragment=ask.fragment, certificate=ask.certificate, piece=ask.piece), payload)
        return len(payload)

    def _payload(self, state: OuterState, ask: StateAsk) -> bytes | memoryview:
        if ask.piece is None:
            return self._leaves_of(state, ask.certificate)
        half, index = divmod(ask.piece, leaf_count(4 * len(state.anchor), STATE_PIECE_BYTES))
        if half > 1:
            index = ask.piece - self._first_of_step(ask.fragment)
            view = memoryview(self._anchors.step(ask.fragment, ask.certificate))
        else:
            view = state_bytes(state.momentum if half else state.anchor)
        return view[index * STATE_PIECE_BYTES : (index + 1) * STATE_PIECE_BYTES]

    def _leaves_of(self, state: OuterState, certificate: bytes) -> bytes:
        if certificate not in self._leaves:
            leaves = state_tree(state.anchor).leaves + state_tree(state.momentum).leaves
            self._leaves[certificate] = b"".join(leaves)
            while len(self._leaves) > SERVED_MAX * len(self._anchors.layouts):
                self._leaves.popitem(last=False)
        return self._leaves[certificate]

    # -- getting

    def receive(self, sender: PeerId, piece: StatePiece, payload: bytes) -> None:
        """A piece that we may be waiting for."""
        steps = self._steps.get((sender, piece.certificate))
        if steps is not None and piece.piece is not None and piece.piece in steps.wanted:
            if not steps.found.full():
                steps.found.put_nowait((piece.piece, payload if steps.is_whole(piece.piece, payload) else b""))
            return
        arrival = self._arrivals.get(piece.certificate)
        if arrival is not None:
            now, download = asyncio.get_running_loop().time(), self._downloads[piece.certificate]
            before = download.bytes_done
            download.receive(sender, piece.piece, payload, now)
            self._inflow.add(download.bytes_done - before, now)
            arrival.set()

    async def fetch_step(self, certificate: Certificate, holder: PeerId, length_bytes: int) -> bytes | None:
        """What led to this state, as one holder tells it, unproven; None if it does not, or is too slow."""
        first, wanted = self._first_of_step(certificate.fragment), leaf_count(length_bytes, STATE_PIECE_BYTES)
        arrivals = self._steps[holder, certificate.digest] = _Steps(range(first, first + wanted), length_bytes)
        try:
            async with asyncio.timeout(STALL_SECONDS + length_bytes / STEP_BYTES_PER_SECOND_MIN):
                return await self._gather_step(certificate, holder, arrivals)
        except TimeoutError:
            return None
        finally:
            if self._steps.get((holder, certificate.digest)) is arrivals:  # else a later try waits there
                del self._steps[holder, certificate.digest]

    async def _gather_step(self, certificate: Certificate, holder: PeerId, arrivals: _Steps) -> bytes | None:
        """Raises TimeoutError if the holder stalls."""
        found: dict[int, bytes] = {}
        for start in range(arrivals.wanted.start, arrivals.wanted.stop, PIECES_IN_FLIGHT):
            window = range(start, min(start + PIECES_IN_FLIGHT, arrivals.wanted.stop))
            for piece in window:
                ask = StateAsk(fragment=certificate.fragment, certificate=certificate.digest, piece=piece)
                self._post(holder, ask, b"")
            for _ in window:
                async with asyncio.timeout(STALL_SECONDS):
                    piece, payload = await arrivals.found.get()
                if not payload:
                    return None
                found[piece] = payload
        return b"".join(found[piece] for piece in arrivals.wanted) if len(found) == len(arrivals.wanted) else None

    def _first_of_step(self, fragment: int) -> int:
        """Pieces of the step that led to a state are numbered after those of its two halves."""
        return 2 * leaf_count(4 * self._anchors.layouts[fragment].elements, STATE_PIECE_BYTES)

    def progress(self, now: float) -> tuple[int, int, int, float | None]:
        """Bytes that have arrived, bytes in all, holders asked and seconds left, over the downloads that run."""
        running = [self._downloads[certificate] for certificate in self._arrivals]
        done, total = sum(one.bytes_done for one in running), sum(one.bytes_total for one in running)
        sources = max((one.sources for one in running), default=0)
        return done, total, sources, self._inflow.seconds_left(total - done, now)

    async def fetch(self, certificate: Certificate, holders: Sequence[PeerId]) -> OuterState:
        """The certified state, from all of these holders together; raises NetworkError if they do not have it all."""
        return await self.get(
            Wanted(certificate.fragment, certificate.version, certificate.digest, certificate.state), holders
        )

    async def get(self, wanted: Wanted, holders: Sequence[PeerId]) -> OuterState:
        """`fetch`, of any state whose digest is known."""
        download = self._resume(wanted)
        download.offer(holders)
        arrival = self._arrivals.setdefault(wanted.name, asyncio.Event())
        try:
            await self._run(download, wanted, arrival)
        finally:
            self._arrivals.pop(wanted.name, None)
        self._downloads.pop(wanted.name, None)  # gone if another call waited for the same state
        return download.state()

    def _resume(self, wanted: Wanted) -> Download:
        """What an earlier try has left of this state, or a new download."""
        download = self._downloads.get(wanted.name)
        if download is None:
            elements = self._anchors.layouts[wanted.fragment].elements
            download = self._downloads[wanted.name] = Download(wanted.state, elements)
        idle = [digest for digest in self._downloads if digest not in self._arrivals and digest != wanted.name]
        for digest in idle[: max(0, len(self._downloads) - DOWNLOADS_KEPT)]:
            del self._downloads[digest]
        return download

    async def _run(self, download: Download, wanted: Wanted, arrival: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not download.done:
            arrival.clear()
            for ask in download.asks(loop.time()):
                self._post(
                    ask.holder, StateAsk(fragment=wanted.fragment, certificate=wanted.name, piece=ask.piece), b""
                )
            if download.hopeless:
                raise NetworkError(f"no holder gave version {wanted.version} of fragment {wanted.fragment}")
            try:
                async with asyncio.timeout_at(download.next_deadline()):
                    await arrival.wait()
            except TimeoutError:
                continue
