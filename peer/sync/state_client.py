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

FILE = 0  # stands for a file among the fragments of downloads


class StateClient:
    """The requesting side of state transfer at one peer; `steps` requests the steps that led to states."""

    def __init__(self, anchors: Anchors, post: Post) -> None:
        self.anchors = anchors
        self._post = post
        self._downloads = DownloadScheduler(2 if anchors.keeps_momentum else 1)
        self._timer: asyncio.TimerHandle | None = None
        self._inflow = TransferRate()
        self.steps = StepClient(anchors, post, self._downloads, self._inflow, self._go_on)

    def gone(self, peer: PeerId) -> None:
        """Handle that our streams to this peer broke: its answers will not come."""
        self._downloads.gone(peer)
        self.steps.gone(peer)
        self._go_on()

    def close(self) -> None:
        """Stop requesting."""
        if self._timer is not None:
            self._timer.cancel()

    def receive(self, sender: PeerId, piece: StatePiece, payload: bytes) -> None:
        """Take a piece that we may be waiting for."""
        if self.steps.receive(sender, piece, payload):
            return
        now, request = asyncio.get_running_loop().time(), (piece.certificate, piece.piece)
        self._inflow.add(self._downloads.receive(sender, piece.fragment, request, payload, now), now)
        self._go_on()

    def progress(self, lacking: Collection[int], now: float) -> tuple[int, int, int, float | None]:
        """Return received bytes, total bytes, holders with requests, and seconds left for these fragments."""
        done, total, sources = self._downloads.progress(lacking)
        return done, total, sources, self._inflow.seconds_left(total - done, now)

    async def fetch(self, certificate: Certificate, holders: Sequence[PeerId]) -> OuterState:
        """Download the certified state from all these holders together; raises NetworkError if they lack some of it."""
        return await self.get(
            Wanted(certificate.fragment, certificate.version, certificate.digest, certificate.state), holders
        )

    def offer(self, fragment: int, holders: Sequence[PeerId]) -> None:
        """Add holders to the download of this fragment, if there is one."""
        if self._downloads.is_awaited(fragment):
            self._downloads.offer(fragment, holders)
            self._go_on()

    def has_begun(self, fragment: int) -> bool:
        """Whether some of an incomplete state is here or under way."""
        return self._downloads.has_begun(fragment)

    def forget(self, fragment: int) -> None:
        """Drop a state that no caller waits for; it would take as much memory as a whole one."""
        self._downloads.forget(fragment)

    def give_up(self, fragment: int) -> None:
        """End `get` of a state of this fragment without it; received pieces stay."""
        self._downloads.end(fragment)

    async def get(self, wanted: Wanted, holders: Sequence[PeerId]) -> OuterState:
        """Download any state whose digest is known, as `fetch`; another one of the same fragment ends it."""
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
        """Download something that is not a state, with a client that gets no states; raises NetworkError as `get`."""
        await self._over(FILE, lambda ended: self._downloads.begin_with(FILE, download, holders, ended))
        if not download.done:
            liars = [f"piece {piece} from {peer} is false" for peer, piece in self._downloads.false.items()]
            raise NetworkError("; ".join(liars) or "no holder gave all of it")

    async def _over(self, fragment: int, begin: Callable[[Ended], None]) -> bool:
        """Begin a download and wait until it is over; return False if another one has taken its place."""
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
        """Make the requests that are possible now, and end downloads that are over."""
        loop = asyncio.get_running_loop()
        for ask in self._downloads.asks(loop.time()) if self.steps.leaves_room(loop.time()) else ():
            self._post(ask.holder, StateAsk(fragment=ask.fragment, certificate=ask.name, piece=ask.piece), b"")
        self._downloads.settle()
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._downloads.next_deadline(loop.time())
        self._timer = loop.call_at(deadline, self._go_on) if deadline < math.inf else None
