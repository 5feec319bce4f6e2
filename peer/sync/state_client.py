"""Gets certified states from peers and gives them: the shell around `peer.sync.download_scheduler` (design §8)."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.wire.merkle import leaf_count
from dht.errors import NetworkError
from dht.identity import PeerId
from peer.net.frames import StateAsk, StatePiece
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES, OuterState
from peer.storage.anchors import Anchors
from peer.sync.download_scheduler import HOLDERS_ASKED_MAX, HOLDERS_KNOWN_MAX, DownloadScheduler, Wanted
from peer.sync.rate import TransferRate
from peer.sync.source import ANSWER_SECONDS, PIECES_IN_FLIGHT, STALL_SECONDS, patience_seconds
from peer.sync.state_server import StateServer, first_of_step

STEP_BYTES_PER_SECOND_MIN = 128 << 10  # from whoever tells a step more slowly we take none, where others are quicker

Post = Callable[[PeerId, StateAsk | StatePiece, bytes | memoryview], None]


@dataclass(frozen=True, slots=True)
class _Steps:
    """Pieces of a step of so many bytes that a holder is asked for; those that came, empty where one is not whole."""

    wanted: range
    length_bytes: int
    found: dict[int, bytes] = field(default_factory=dict)
    come: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, piece: int, payload: bytes) -> None:
        """One has come; perhaps once more, if it was asked for again."""
        if piece in self.found:
            return
        before_bytes = (piece - self.wanted.start) * STATE_PIECE_BYTES
        whole = len(payload) == min(STATE_PIECE_BYTES, self.length_bytes - before_bytes)
        self.found[piece] = payload if whole else b""
        self.come.set()

    def break_off(self) -> None:
        """Nothing more will come."""
        for piece in self.wanted:
            self.found.setdefault(piece, b"")
        self.come.set()


class StateClient:
    """Both ends of state transfer at one peer."""

    def __init__(self, anchors: Anchors, post: Post) -> None:
        self.anchors = anchors
        self._post = post
        self._giving = StateServer(anchors, post)
        self._downloads = DownloadScheduler(2 if anchors.keeps_momentum else 1)
        self._waiting: dict[int, asyncio.Future[None]] = {}  # by fragment, until its state is here or nobody has it
        self._timer: asyncio.TimerHandle | None = None
        self._steps: dict[tuple[PeerId, bytes], _Steps] = {}  # by holder and certificate
        self._turns = asyncio.Condition()
        self._telling = 0  # steps that come at the moment
        self._step_stalled = False  # the last one did
        self._stalled: OrderedDict[PeerId, None] = OrderedDict()  # who was too slow with a step, the latest last
        self._inflow = TransferRate()

    def give_at_most(self, bytes_per_second: float, bytes_per_day: float = math.inf) -> None:
        """Give states no faster than this, nor than is usual; so many bytes at once, and as many in a day."""
        self._giving.give_at_most(bytes_per_second, bytes_per_day)

    def serve(self, sender: PeerId, ask: StateAsk) -> None:
        """Answer, now or when it is the asker's turn."""
        self._giving.serve(sender, ask)

    def gone(self, peer: PeerId) -> None:
        """Our streams to this peer have broken: what it asked for would not reach it, what we asked will not come."""
        self._giving.gone(peer)
        self._downloads.gone(peer)
        for (holder, _), arrivals in self._steps.items():
            if holder == peer:
                arrivals.break_off()
        self._go_on()

    def close(self) -> None:
        """Give nothing more, and ask for nothing."""
        self._giving.close()
        if self._timer is not None:
            self._timer.cancel()

    def receive(self, sender: PeerId, piece: StatePiece, payload: bytes) -> None:
        """A piece that we may be waiting for."""
        steps = self._steps.get((sender, piece.certificate))
        if steps is not None and piece.piece is not None and piece.piece in steps.wanted:
            self._inflow.add(len(payload), asyncio.get_running_loop().time())
            steps.take(piece.piece, payload)
            return
        now, wish = asyncio.get_running_loop().time(), (piece.certificate, piece.piece)
        self._inflow.add(self._downloads.receive(sender, piece.fragment, wish, payload, now), now)
        self._go_on()

    # -- steps

    async def fetch_step(self, certificate: Certificate, holder: PeerId, length_bytes: int) -> bytes | None:
        """What led to this state, as one holder tells it, unproven; None if it does not, or is too slow.

        Waits until the line has room for it: only then can a holder be held to a rate.
        """
        loop, stalled_before = asyncio.get_running_loop(), self.has_stalled(holder)
        async with self._turns:
            await self._turns.wait_for(lambda: self._telling < min(self._shares(loop.time()), HOLDERS_ASKED_MAX))
            self._telling += 1
        try:
            if self.has_stalled(holder) and not stalled_before:
                return None  # it has let somebody else wait while we waited for our turn
            return await self._fetch_step(certificate, holder, length_bytes)
        finally:
            self._telling -= 1
            self._go_on()
            async with self._turns:
                self._turns.notify_all()

    def _shares(self, now: float) -> int:
        """How many steps may come at once: one, and more where all then still come faster than they must."""
        return 1 + int((self._inflow.rate(now) or 0.0) / (2 * self._step_rate_min()))

    def _step_rate_min(self) -> float:
        """Bytes a second, at which a step has to come.

        Where most holders take longer than usual for a piece, the line is slow or they have many askers. The state as a
        whole, for which they are given as long as they take, would come no faster then, and begin anew for ever.
        """
        return STEP_BYTES_PER_SECOND_MIN * ANSWER_SECONDS / self._downloads.answer_seconds()

    def _leaves_room(self, now: float) -> bool:
        """Whether more of whole states may be asked for: steps, which are short, come first, unless that is in vain."""
        crowded = self._telling + HOLDERS_ASKED_MAX > self._shares(now)
        return not (self._telling and crowded) or self._step_stalled

    def has_stalled(self, holder: PeerId) -> bool:
        """Whether it was too slow when it was last asked for a step."""
        return holder in self._stalled

    async def _fetch_step(self, certificate: Certificate, holder: PeerId, length_bytes: int) -> bytes | None:
        first, wanted = first_of_step(self.anchors, certificate.fragment), leaf_count(length_bytes, STATE_PIECE_BYTES)
        arrivals = self._steps[holder, certificate.digest] = _Steps(range(first, first + wanted), length_bytes)
        stall_seconds = patience_seconds(self._downloads.answer_seconds())
        stall_seconds += min(self._downloads.seconds_owed(), STALL_SECONDS)
        self._stalled.pop(holder, None)
        try:
            async with asyncio.timeout(stall_seconds + length_bytes / self._step_rate_min()):
                told = await self._gather_step(certificate, holder, arrivals, stall_seconds)
            self._step_stalled = self._step_stalled and told is None
            return told
        except TimeoutError:
            self._stalled[holder], self._step_stalled = None, True
            while len(self._stalled) > HOLDERS_KNOWN_MAX:
                self._stalled.popitem(last=False)
            return None
        finally:
            if self._steps.get((holder, certificate.digest)) is arrivals:  # else a later try waits there
                del self._steps[holder, certificate.digest]

    async def _gather_step(
        self, certificate: Certificate, holder: PeerId, arrivals: _Steps, stall_seconds: float
    ) -> bytes | None:
        """Raises TimeoutError if the holder stalls."""
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

    # -- states

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
        if fragment in self._waiting:
            self._downloads.offer(fragment, holders)
            self._go_on()

    def has_begun(self, fragment: int) -> bool:
        """Whether some of a state that is not whole yet is here or under way."""
        return self._downloads.has_begun(fragment)

    def forget(self, fragment: int) -> None:
        """Nothing is left of a state that nobody waits for; it would take as much memory as the whole."""
        self._downloads.forget(fragment)

    def give_up(self, fragment: int) -> None:
        """Whoever waits for a state of this fragment gets none; what has come stays."""
        waiting = self._waiting.get(fragment)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def get(self, wanted: Wanted, holders: Sequence[PeerId]) -> OuterState:
        """`fetch`, of any state whose digest is known; another one of the same fragment ends it."""
        fragment = wanted.fragment
        self.give_up(fragment)
        waiting = self._waiting[fragment] = asyncio.get_running_loop().create_future()
        self._downloads.begin(wanted, self.anchors.layouts[fragment].elements, holders)
        try:
            self._go_on()
            await waiting
        finally:
            newest = self._waiting.get(fragment) is waiting
            if newest:
                del self._waiting[fragment]
                self._downloads.pause(fragment)
                self._go_on()
        state = self._downloads.take(fragment) if newest else None
        if state is None:
            raise NetworkError(f"no holder gave version {wanted.version} of fragment {fragment}")
        if not state.is_finite:  # whoever certified it was alone and hostile
            raise NetworkError(f"version {wanted.version} of fragment {fragment} is nothing that one can go on from")
        return state

    def _go_on(self) -> None:
        """Ask for what may be asked for now, and tell those who wait for what is over."""
        loop = asyncio.get_running_loop()
        for ask in self._downloads.asks(loop.time()) if self._leaves_room(loop.time()) else ():
            self._post(ask.holder, StateAsk(fragment=ask.fragment, certificate=ask.name, piece=ask.piece), b"")
        for fragment, waiting in self._waiting.items():
            if not waiting.done() and self._downloads.is_over(fragment):
                waiting.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._downloads.next_deadline(loop.time())
        self._timer = loop.call_at(deadline, self._go_on) if deadline < math.inf else None
