"""A network in memory, with the faults of a real one.

Every draw comes from the seed and every delay from the loop's clock, so that on a `VirtualLoop` a seed fixes the course
of events.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from dht.identity import PeerId
from peer.net.transport import (
    Frame,
    Lane,
    OnFrame,
    OnGone,
    Payload,
    QueueBudget,
    Traffic,
    TransportConfig,
    frame_bytes,
    frame_prefix,
    lane_of,
)


@dataclass(frozen=True, slots=True)
class LinkPolicy:
    """The behaviour of one direction between two peers. Shares are probabilities per frame."""

    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0  # uniform, added to the delay; keeps the order
    bytes_per_second: float = float("inf")
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    reordering_seconds: float = 0.05  # a reordered frame is held back so long while others pass

    def __post_init__(self) -> None:
        if min(self.delay_seconds, self.jitter_seconds, self.reordering_seconds) < 0 or self.bytes_per_second <= 0:
            raise ValueError("delays must not be negative and the rate must be positive")
        if not all(0 <= share <= 1 for share in (self.loss, self.duplication, self.reordering)):
            raise ValueError("loss, duplication and reordering are probabilities")


@dataclass(slots=True)
class _Link:
    """One lane from one peer to another."""

    budget: QueueBudget
    draws: random.Random
    free_at: float = 0.0  # when the last frame has left
    order_at: float = 0.0  # arrival of the last frame that keeps the order


@dataclass(frozen=True, slots=True)
class _Delivery:
    sender: MemoryTransport
    receiver: MemoryTransport | None
    link: _Link
    frame: Frame
    leaves_at: float
    lost: bool
    copies: int


class MemoryNetwork:
    """A network that joins the `MemoryTransport`s made with it, with the faults that a test sets."""

    def __init__(self, seed: int, policy: LinkPolicy | None = None) -> None:
        self._seed = seed
        self._policy = policy or LinkPolicy()
        self._policies: dict[tuple[PeerId, PeerId], LinkPolicy] = {}
        self._transports: dict[PeerId, MemoryTransport] = {}
        self._links: dict[tuple[PeerId, PeerId, Lane], _Link] = {}
        self._met: set[tuple[PeerId, PeerId]] = set()  # (observer, peer): the observer is told when the peer goes
        self._reporting: set[tuple[PeerId, PeerId]] = set()
        self._sides: tuple[Set[PeerId], ...] = ()
        self._frozen_until: dict[PeerId, float] = {}
        # asyncio's own timers come in no fixed order where times are equal; these come first in, first out
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()
        self._timer: asyncio.TimerHandle | None = None

    def transport(self, peer_id: PeerId, config: TransportConfig | None = None) -> MemoryTransport:
        """Make a transport for `peer_id`, which the others reach once it is started."""
        return MemoryTransport(self, peer_id, config or TransportConfig())

    def set_policy(self, sender: PeerId, receiver: PeerId, policy: LinkPolicy) -> None:
        """Let one direction behave differently, from the next frame on."""
        self._policies[sender, receiver] = policy

    def partition(self, *sides: Set[PeerId]) -> None:
        """Lose all frames from one side to another, also those under way. Peers in no side are not affected."""
        self._sides = sides

    def heal(self) -> None:
        """End the partition."""
        self._sides = ()

    def freeze(self, peer: PeerId, seconds: float) -> None:
        """Hold all traffic from and to `peer` for so long, then deliver it."""
        self._frozen_until[peer] = asyncio.get_running_loop().time() + seconds

    def kill(self, peer: PeerId) -> None:
        """End a peer as SIGKILL would: it receives and sends nothing more; connected peers see the streams break."""
        transport = self._transports.pop(peer, None)
        if transport is None:
            return
        transport.ended_at = asyncio.get_running_loop().time()
        for (source, _, _), link in self._links.items():
            if source == peer:
                link.free_at = link.order_at = transport.ended_at
        for observer, other in sorted(self._met):
            if other == peer:
                self.report_gone(observer, peer, self._policy_of(peer, observer).delay_seconds)
        self._met = {pair for pair in self._met if peer not in pair}

    def holds(self, transport: MemoryTransport) -> bool:
        """Whether it is started and alive."""
        return self._transports.get(transport.peer_id) is transport

    def join(self, transport: MemoryTransport) -> None:
        """Make a transport reachable, once or again; raises ValueError if its peer id is in use by another one."""
        if self._transports.get(transport.peer_id, transport) is not transport:
            raise ValueError(f"{transport.peer_id} is already in this network")
        self._transports[transport.peer_id] = transport

    def send(self, sender: MemoryTransport, receiver_id: PeerId, frame: Frame) -> bool:
        """Put one frame on its way; False if the queue of its lane is full."""
        link = self._link(sender, receiver_id, lane_of(frame.payload))
        size_bytes = frame_bytes(*frame)
        if not link.budget.take(size_bytes):
            return False
        policy = self._policy_of(sender.peer_id, receiver_id)
        # all draws are made for every frame, so that one fault does not shift the others
        jitter, loss, duplication, reordering = (link.draws.random() for _ in range(4))
        leaves_at = max(asyncio.get_running_loop().time(), link.free_at)
        link.free_at = leaves_at + size_bytes / policy.bytes_per_second
        arrives_at = link.free_at + policy.delay_seconds + jitter * policy.jitter_seconds
        if reordering < policy.reordering:
            arrives_at += policy.reordering_seconds
        else:
            arrives_at = link.order_at = max(arrives_at, link.order_at)
        delivery = _Delivery(
            sender=sender,
            receiver=self._transports.get(receiver_id),
            link=link,
            frame=frame,
            leaves_at=leaves_at,
            lost=loss < policy.loss,
            copies=2 if duplication < policy.duplication else 1,
        )
        if self._parted(sender.peer_id, receiver_id):
            self.report_gone(sender.peer_id, receiver_id, sender.config.connect_timeout_seconds)
        elif delivery.receiver is None:
            self.report_gone(sender.peer_id, receiver_id, policy.delay_seconds)
        self._at(arrives_at, partial(self._arrive, delivery))
        return True

    def congested(self, sender: PeerId, receiver: PeerId | None = None) -> bool:
        """Whether a queue of `sender` (towards `receiver`) is congested."""
        return any(
            link.budget.congested
            for (source, target, _), link in self._links.items()
            if source == sender and receiver in (None, target)
        )

    def report_gone(self, observer: PeerId, peer: PeerId, after_seconds: float) -> None:
        """Tell `observer` later that it lost `peer`; only once, however many frames are lost meanwhile."""
        if (observer, peer) not in self._reporting:
            self._reporting.add((observer, peer))
            self._at(asyncio.get_running_loop().time() + after_seconds, partial(self._tell_gone, observer, peer))

    def _tell_gone(self, observer: PeerId, peer: PeerId) -> None:
        self._reporting.discard((observer, peer))
        self._met.discard((observer, peer))
        if (transport := self._transports.get(observer)) is not None:
            transport.gone(peer)

    def _arrive(self, delivery: _Delivery) -> None:
        sender, receiver = delivery.sender, delivery.receiver
        names = (sender.peer_id, receiver.peer_id) if receiver is not None else (sender.peer_id,)
        thaws_at = max(self._frozen_until.get(name, 0.0) for name in names)
        if thaws_at > asyncio.get_running_loop().time():
            self._at(thaws_at, partial(self._arrive, delivery))
            return
        delivery.link.budget.give_back(frame_bytes(*delivery.frame))
        sender.delivered()
        if receiver is None or not self.holds(receiver):
            return
        if sender.ended_at <= delivery.leaves_at or delivery.lost or self._parted(sender.peer_id, receiver.peer_id):
            return
        self._met |= {(sender.peer_id, receiver.peer_id), (receiver.peer_id, sender.peer_id)}
        for _ in range(delivery.copies):
            receiver.arrive(sender.peer_id, delivery.frame)

    def _parted(self, sender: PeerId, receiver: PeerId) -> bool:
        homes = [index for name in (sender, receiver) for index, side in enumerate(self._sides) if name in side]
        return len(set(homes)) > 1

    def _policy_of(self, sender: PeerId, receiver: PeerId) -> LinkPolicy:
        return self._policies.get((sender, receiver), self._policy)

    def _link(self, sender: MemoryTransport, receiver: PeerId, lane: Lane) -> _Link:
        key = (sender.peer_id, receiver, lane)
        if key not in self._links:
            draws = random.Random(f"{self._seed}/{sender.peer_id}/{receiver}/{lane}")
            self._links[key] = _Link(QueueBudget(sender.config), draws)
        return self._links[key]

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._sequence), action))
        if self._agenda[0][2] is action:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._agenda:
            self._timer = asyncio.get_running_loop().call_at(self._agenda[0][0], self._run)

    def _run(self) -> None:
        # the clock may be a hair early: asyncio fires within its resolution
        until = max(asyncio.get_running_loop().time(), self._agenda[0][0])
        try:
            while self._agenda and self._agenda[0][0] <= until:
                heapq.heappop(self._agenda)[2]()
        finally:
            self._set_timer()


class MemoryTransport:
    """The `peer.net.transport.Transport` of one peer in a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId, config: TransportConfig) -> None:
        self.peer_id = peer_id
        self.config = config
        self.ended_at = float("inf")
        self._network = network
        self._on_frame: OnFrame = lambda sender, header, payload: None
        self._on_gone: OnGone = lambda peer: None
        self._total = Traffic()
        self._per_peer: dict[PeerId, Traffic] = {}
        self._refused_until: dict[PeerId, float] = {}
        self._frames_under_way = 0
        self._idle = asyncio.Event()

    @property
    def traffic(self) -> Traffic:
        return replace(self._total, congested=self._network.congested(self.peer_id))

    def traffic_of(self, peer: PeerId) -> Traffic:
        return replace(self._per_peer.get(peer, Traffic()), congested=self._network.congested(self.peer_id, peer))

    def post(self, peer: PeerId, header: bytes, payload: Payload = b"") -> None:
        if peer == self.peer_id:
            raise ValueError("a peer does not post to itself")
        frame_prefix(header, payload, self.config.payload_bytes_max)
        if not self._network.holds(self):
            return
        sent = self._network.send(self, peer, Frame(header, bytes(payload)))
        for traffic in self._counters(peer):
            if sent:
                traffic.bytes_sent += frame_bytes(header, payload)
            else:
                traffic.frames_dropped += 1
        self._frames_under_way += sent

    async def start(self, on_frame: OnFrame, on_gone: OnGone) -> None:
        self._on_frame, self._on_gone = on_frame, on_gone
        self._network.join(self)

    async def flush(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._frames_under_way:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._network.holds(self):
            self._network.kill(self.peer_id)

    def delivered(self) -> None:
        """Note that one of our frames is no longer under way, delivered or lost."""
        self._frames_under_way -= 1
        if not self._frames_under_way:
            self._idle.set()

    def arrive(self, sender: PeerId, frame: Frame) -> None:
        """Take a frame from the network; a sender over our limits is cut off, as `FrameReader` does."""
        now = asyncio.get_running_loop().time()
        refused = now < self._refused_until.get(sender, 0.0)
        if not refused and len(frame.payload) <= self.config.payload_bytes_max:
            for traffic in self._counters(sender):
                traffic.bytes_received += frame_bytes(*frame)
            self._on_frame(sender, frame.header, frame.payload)
            return
        if not refused:
            self._refused_until[sender] = now + self.config.refusal_seconds
            self._on_gone(sender)
        self._network.report_gone(sender, self.peer_id, 0.0)

    def gone(self, peer: PeerId) -> None:
        """Take the network's word that `peer` is lost."""
        self._on_gone(peer)

    def _counters(self, peer: PeerId) -> tuple[Traffic, Traffic]:
        return self._total, self._per_peer.setdefault(peer, Traffic())
