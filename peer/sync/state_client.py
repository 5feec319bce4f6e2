"""Gets certified states from the peers that hold them: the shell around `peer.sync.download_scheduler` (design §8)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Sequence

from coordinator.chain.certificate import Certificate
from dht.errors import NetworkError
from dht.identity import PeerId
from peer.net.frames import StateAsk, StatePiece
from peer.numerics.outer_optimizer import OuterState
from peer.storage.anchors import Anchors
from peer.sync.download import Download, Ended, Wanted
from peer.sync.download_scheduler import DownloadScheduler
from peer.sync.rate import TransferRate
from peer.sync.step_client import Post, StepClient

FILE = 0  # the place of a file among downloads


class StateClient:
    """The asking end of state transfer at one peer; `steps` asks for what led to a state."""

    def __init__(self, anchors: Anchors, post: Post) -> None:
        self.anchors = anchors
        self._post = post
        self._downloads = DownloadScheduler(2 if anchors.keeps_momentum else 1)
        self._timer: asyncio.TimerHandle | None = None
        self._inflow = TransferRate()
        self.steps = StepClient(anchors, post, self._downloads, self._inflow, self._go_on)

    def gone(self, peer: PeerId) -> None:
        """Our streams to this peer have broken: what we asked will not come."""
        self._downloads.gone(peer)
        self.steps.gone(peer)
        self._go_on()

    def close(self) -> None:
        """Ask for nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def receive(self, sender: PeerId, piece: StatePiece, payload: bytes) -> None:
        """A piece that we may be waiting for."""
        if self.steps.receive(sender, piece, payload):
            return
        now, request = asyncio.get_running_loop().time(), (piece.certificate, piece.piece)
        self._inflow.add(self._downloads.receive(sender, piece.fragment, request, payload, now), now)
        self._go_on()

    def progress(self, lacking: Collection[int], now: float) -> tuple[int, int, int, float | None]:
        """Bytes that have arrived, bytes in all, holders asked and seconds left, until these fragments' are here."""
        done, total, sources = self._downloads.progress(lacking)
        return done, total, sources, self._inflow.seconds_left(total - done, now)

    async def fetch(self, certificate: Certificate, holders: Sequence[PeerId]) -> OuterState:
        """The certified state, from all of these holders together; raises NetworkError if they do not have it all."""
        return await self.get(
            Wanted(certificate.fragment, certificate.version, certificate.digest, certificate.state), holders
        )

    def offer(self, fragment: int, holders: Sequence[PeerId]) -> None:
        """These may hold what is under way of this fragment, if anything is."""
        if self._downloads.is_awaited(fragment):
            self._downloads.offer(fragment, holders)
            self._go_on()

    def has_begun(self, fragment: int) -> bool:
        """Whether some of a state that is not whole yet is here or under way."""
        return self._downloads.has_begun(fragment)

    def forget(self, fragment: int) -> None:
        """Nothing is left of a state that nobody waits for; it would take as much memory as the whole."""
        self._downloads.forget(fragment)

    def give_up(self, fragment: int) -> None:
        """`get` of a state of this fragment ends without it; what has come stays."""
        self._downloads.end(fragment)

    async def get(self, wanted: Wanted, holders: Sequence[PeerId]) -> OuterState:
        """`fetch`, of any state whose digest is known; another one of the same fragment ends it."""
        elements = self.anchors.layouts[wanted.fragment].elements
        is_newest = await self._over(
            wanted.fragment, lambda ended: self._downloads.begin(wanted, elements, holders, ended)
        )
        state = self._downloads.take(wanted.fragment) if is_newest else None
        if state is None:
            raise NetworkError(f"no holder gave version {wanted.version} of fragment {wanted.fragment}")
        if not state.is_finite:  # its only signer was hostile
            raise NetworkError(
                f"version {wanted.version} of fragment {wanted.fragment} is nothing that one can go on from"
            )
        return state

    async def get_file(self, download: Download, holders: Sequence[PeerId]) -> None:
        """The whole of something that is no state, by a client that gets no states; raises NetworkError as `get`."""
        await self._over(FILE, lambda ended: self._downloads.begin_with(FILE, download, holders, ended))
        if not download.done:
            liars = [f"piece {piece} from {peer} is false" for peer, piece in self._downloads.false.items()]
            raise NetworkError("; ".join(liars) or "no holder gave all of it")

    async def _over(self, fragment: int, begin: Callable[[Ended], None]) -> bool:
        """Begin, and wait until it is here, or nobody is left to ask; false if another one has taken its place."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended() -> None:
            if not waiting.done():
                waiting.set_result(None)

        begin(ended)
        try:
            self._go_on()
            await waiting
        finally:
            is_newest = self._downloads.pause(fragment, ended)
            if is_newest:
                self._go_on()
        return is_newest

    def _go_on(self) -> None:
        """Ask for what may be asked for now, and end what is over."""
        loop = asyncio.get_running_loop()
        for ask in self._downloads.asks(loop.time()) if self.steps.leaves_room(loop.time()) else ():
            self._post(ask.holder, StateAsk(fragment=ask.fragment, certificate=ask.name, piece=ask.piece), b"")
        self._downloads.settle()
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._downloads.next_deadline(loop.time())
        self._timer = loop.call_at(deadline, self._go_on) if deadline < math.inf else None
