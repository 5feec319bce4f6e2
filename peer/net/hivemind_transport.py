"""The transport over libp2p: raw binary streams through hivemind's daemon.

Per remote peer there are at most two streams that we opened, one per lane, and two that it opened. hivemind's unary
calls would cost a protobuf, a task and a reply per message; a frame here is one write.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter

import structlog
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from multiaddr import Multiaddr  # hivemind's own copy encodes Ed25519 peer ids in a way its daemon refuses
from multiaddr.exceptions import Error as MultiaddrError

from dht.addresses import is_relayed
from dht.allowance import Allowance
from dht.daemon import calls
from dht.daemon.calls import DAEMON_ERRORS, ByteStream
from dht.daemon.knocking import knock
from dht.door import Door
from dht.errors import LocalError, NetworkError, PeerError
from dht.identity import PeerId
from dht.wire import PROTOCOL_MAJOR
from peer.machine.throttle import Throttle
from peer.net.hivemind_streams import SLICE_BYTES, IncomingStream, Intake, OutgoingLane
from peer.net.transport import Frame, Lane, OnFrame, OnGone, Payload, Traffic, TransportConfig, frame_prefix, lane_of

ADDRESSES_MAX = 16  # per peer and dial; no honest peer has more
UNHEARD_SECONDS = 1.0  # between two reports about a peer that is refused
SWEEP_SECONDS_MAX = 1.0  # maximum delay in noticing a missed deadline
UNANSWERED_PART = 2  # one part in this many of `peers_max` is for peers that have never answered us

Addresses = Callable[[PeerId], list[str]]

log = structlog.get_logger(__name__)


def handler_name(run_id: bytes, lane: Lane) -> str:
    """Return the libp2p protocol name of one lane of one run; peers of another major version never meet."""
    return f"muster/{PROTOCOL_MAJOR}/{run_id.hex()}/{lane}"


class HivemindTransport:
    """`peer.net.transport.Transport` over a running `hivemind.p2p.P2P`, which it does not own.

    `addresses` returns the known multiaddrs of a peer that is not connected. State is kept for at most `peers_max`
    peers. Peers that we never wrote to are forgotten first. Next, beyond a part of that room, are peers that never
    answered. Last are peers to which we are sending. So a flood of fresh keys cannot displace a peer that we work with,
    nor its queue, even if those keys make us write to them.
    """

    def __init__(
        self,
        p2p: P2P,
        run_id: bytes,
        addresses: Addresses,
        config: TransportConfig | None = None,
        throttle: Throttle | None = None,
        door: Door | None = None,
    ) -> None:
        self.config = config or TransportConfig()
        self.throttle = throttle or Throttle()
        self.peer_id = PeerId(p2p.peer_id.to_base58())
        self._p2p = p2p
        self._door = door or Door()
        self._run_id = run_id
        self._addresses = addresses
        self._remotes: OrderedDict[PeerId, _Remote] = OrderedDict()
        self._forgotten = Traffic()
        self._ending: set[asyncio.Task[None]] = set()
        self._scratch = memoryview(bytearray(SLICE_BYTES))
        self._idle = asyncio.Event()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._on_frame: OnFrame = lambda sender, header, payload: None
        self._on_gone: OnGone = lambda peer: None
        self._open = False

    @property
    def traffic(self) -> Traffic:
        parts = [self._forgotten, *(remote.snapshot() for remote in self._remotes.values())]
        return Traffic(
            bytes_sent=sum(part.bytes_sent for part in parts),
            bytes_received=sum(part.bytes_received for part in parts),
            frames_dropped=sum(part.frames_dropped for part in parts),
            congested=any(part.congested for part in parts),
        )

    def traffic_of(self, peer: PeerId) -> Traffic:
        remote = self._remotes.get(peer)
        return remote.snapshot() if remote is not None else Traffic()

    def post(self, peer: PeerId, header: bytes, payload: Payload = b"") -> None:
        if peer == self.peer_id:
            raise ValueError("a peer does not post to itself")
        prefix = frame_prefix(header, payload, self.config.payload_bytes_max)
        if self._open and (remote := self._remote(peer, ours=True)) is not None:
            remote.post(prefix, header, payload)

    async def start(self, on_frame: OnFrame, on_gone: OnGone) -> None:
        """Register with the daemon and begin to deliver; raises LocalError if the daemon does not answer."""
        self._on_frame, self._on_gone = on_frame, on_gone
        self._open = True
        try:
            for lane in Lane:
                name, accept = handler_name(self._run_id, lane), partial(self._accept, lane)
                await calls.add_handler(self._p2p, name, accept, self.config.connect_timeout_seconds)
        except DAEMON_ERRORS as error:
            raise LocalError(f"the libp2p daemon does not take our handlers: {error}") from None
        self._sweep()

    async def flush(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                while any(lane.busy for remote in self._remotes.values() for lane in remote.lanes.values()):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for lane in Lane:
            with suppress(*DAEMON_ERRORS):  # a dead daemon has forgotten them, and one that hangs is replaced
                name, seconds = handler_name(self._run_id, lane), self.config.connect_timeout_seconds
                await calls.remove_handler(self._p2p, name, seconds)
        for peer in list(self._remotes):
            self._forget(peer)
        if self._ending:
            await asyncio.wait(self._ending)

    def adjust(self, config: TransportConfig) -> None:
        """Use other bounds from now on; open streams keep their queue sizes."""
        self.config = config
        for remote in self._remotes.values():
            for stream in remote.incoming.values():
                stream.limit(config.payload_bytes_max)

    def _remote(self, peer: PeerId, ours: bool) -> _Remote | None:
        """Return the state of a peer, created if need be; None if there is no room for a stranger."""
        remote = self._remotes.get(peer)
        if remote is None:
            if len(self._remotes) >= self.config.peers_max:
                victim = self._least_missed(ours)
                if victim is None:
                    return None
                self._forget(victim)
            remote = self._remotes[peer] = _Remote(self, peer)
        remote.ours = remote.ours or ours
        self._touch(peer, remote, ours)
        return remote

    def _touch(self, peer: PeerId, remote: _Remote, ours: bool) -> None:
        """Move this peer to the end of the order of forgetting. If we write to it, only our writing counts."""
        if ours or not remote.ours:
            self._remotes.move_to_end(peer)

    def _least_missed(self, ours: bool) -> PeerId | None:
        """Return the peer to forget for a new one; None if the new one is a stranger and all present ones are ours."""
        strangers = [peer for peer, remote in self._remotes.items() if not remote.ours]
        if strangers or not ours:
            return next(iter(strangers), None)
        idle = [(peer, remote.answered) for peer, remote in self._remotes.items() if not remote.is_sending]
        answered, unanswered = ([peer for peer, one in idle if one is which] for which in (True, False))
        many = len(unanswered) > self.config.peers_max // UNANSWERED_PART
        first, second = (unanswered, answered) if many else (answered, unanswered)
        return next(iter([*first, *second, *self._remotes]))

    def _forget(self, peer: PeerId) -> None:
        remote = self._remotes.pop(peer)
        remote.retired = True
        task = asyncio.get_running_loop().create_task(self._end(remote))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, remote: _Remote) -> None:
        await remote.close()
        last = remote.snapshot()
        self._forgotten.bytes_sent += last.bytes_sent
        self._forgotten.bytes_received += last.bytes_received
        self._forgotten.frames_dropped += last.frames_dropped

    async def _accept(
        self, lane: Lane, info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Take over a stream that a remote opened; hivemind calls this in a new task for each."""
        peer = PeerId(info.peer_id.to_base58())
        remote = self._remote(peer, ours=False) if self._open and self._door.knows(peer) else None
        if remote is None or not remote.may_open():
            writer.transport.abort()
            return
        intake = Intake(lane, self._scratch, self.throttle.download, remote.patience)
        stream = IncomingStream(writer, self.config, intake, remote.traffic, remote)
        if (older := remote.incoming.get(lane)) is not None:
            older.abort()  # its sender has given it up: it never opens two at once
        remote.incoming[lane] = stream
        await stream.take_over(reader)
        await stream.lost
        if remote.incoming.get(lane) is stream:
            del remote.incoming[lane]

    async def dial(self, peer: PeerId, lane: Lane) -> ByteStream:
        """Open a stream, connecting first where addresses are known; raises NetworkError."""
        return await self.open_stream(peer, handler_name(self._run_id, lane))

    async def open_stream(self, peer: PeerId, handler: str) -> ByteStream:
        """Open a stream to any handler, as `dial` does."""
        seconds = self.config.connect_timeout_seconds
        try:
            async with asyncio.timeout(seconds):  # for connection and stream together
                if addresses := _multiaddrs(self._addresses(peer), peer):
                    await calls.connect(self._p2p, peer, addresses, seconds)
                if self._door.show(self.peer_id):  # each time, because the remote may have restarted and forgotten us
                    await knock(self._door, self._p2p, self.peer_id, peer, seconds)
                return await calls.open_stream(self._p2p, peer, handler, seconds)
        except (*DAEMON_ERRORS, ValueError) as error:  # a peer id from elsewhere may be malformed
            raise NetworkError(f"cannot reach {peer}: {error}") from None

    def _sweep(self) -> None:
        """Check every deadline and the memory held in one pass, instead of with a timer per frame."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for remote in self._remotes.values():
            for stream in remote.streams:
                if stream.overdue(now):
                    stream.abort()
        self._shed()
        self._sweep_timer = loop.call_later(min(SWEEP_SECONDS_MAX, self.config.frame_seconds), self._sweep)

    def _shed(self) -> None:
        """Cut off the largest unfinished frames, those of strangers first, until the rest fits into its bound."""
        holding = [
            (not remote.ours, stream.held_bytes, stream)
            for remote in self._remotes.values()
            for stream in remote.incoming.values()
        ]
        excess_bytes = sum(held_bytes for _, held_bytes, _ in holding) - self.config.unfinished_bytes_max
        for _, held_bytes, stream in sorted(holding, key=itemgetter(0, 1), reverse=True):
            if excess_bytes <= 0:
                break
            stream.abort()
            excess_bytes -= held_bytes

    def frame(self, sender: PeerId, frame: Frame) -> None:
        """Hand a frame on; not after `close`."""
        if self._open:
            remote = self._remotes[sender]
            remote.answered = True
            self._touch(sender, remote, ours=False)
            self._on_frame(sender, frame.header, frame.payload)

    def gone(self, peer: PeerId) -> None:
        """Report a lost peer; not after `close`."""
        if self._open:
            self._on_gone(peer)

    def idle(self) -> None:
        """Report that one queue is empty."""
        self._idle.set()


class _Remote:
    """The state that we keep about one peer; implements `StreamEvents`."""

    def __init__(self, hub: HivemindTransport, peer: PeerId) -> None:
        self._hub = hub
        self._peer = peer
        self._loss_is_news = False
        self.retired = False  # nothing more is reported about this peer
        self.ours = False  # we have written to it
        self.answered = False  # a frame from it has arrived, asked for or not
        self.patience = Allowance(hub.config.busy_share, hub.config.busy_seconds_at_once)
        self._refused_until = 0.0
        self._told_at = -math.inf
        self._openings = Allowance(hub.config.streams_per_second, hub.config.streams_at_once)
        self.traffic = Traffic()
        self.incoming: dict[Lane, IncomingStream] = {}
        self.lanes = {
            lane: OutgoingLane(lane, hub.config, self.traffic, partial(hub.dial, peer, lane), self, hub.throttle.upload)
            for lane in Lane
        }

    @property
    def streams(self) -> list[OutgoingLane | IncomingStream]:
        return [*self.lanes.values(), *self.incoming.values()]

    @property
    def is_sending(self) -> bool:
        """Whether it takes bytes from us. Frames that wait for a dial do not count: their key may be a fake."""
        return any(lane.sending for lane in self.lanes.values())

    def snapshot(self) -> Traffic:
        return replace(self.traffic, congested=any(lane.congested for lane in self.lanes.values()))

    async def close(self) -> None:
        """End all streams and wait for them."""
        for stream in self.streams:
            await stream.close()

    def post(self, prefix: bytes, header: bytes, payload: Payload) -> None:
        """Queue a frame in its lane."""
        self._loss_is_news = True
        self.lanes[lane_of(payload)].post(prefix, header, payload)

    def may_open(self) -> bool:
        """Whether the remote may open one more stream."""
        now = asyncio.get_running_loop().time()
        if now < self._refused_until:
            self._tell_unheard(now)
            return False
        if self._openings.wait_seconds(now):
            self.misbehaved(PeerError("opens streams without end"))
            return False
        self._openings.take(1.0, now)
        return True

    def stream_up(self) -> None:
        self._loss_is_news = True

    def stream_down(self) -> None:
        if self._loss_is_news:  # all streams of a dead peer break at once: report once, and again if we wrote meanwhile
            self.dial_failed()

    def dial_failed(self) -> None:
        self._loss_is_news = False
        if not self.retired:
            self._hub.gone(self._peer)

    def queue_empty(self) -> None:
        self._hub.idle()

    def received(self, frame: Frame) -> None:
        if not self.retired:
            self._hub.frame(self._peer, frame)

    def misbehaved(self, error: PeerError) -> None:
        log.warning("a peer broke the framing", peer=self._peer, error=str(error))
        self._refused_until = asyncio.get_running_loop().time() + self._hub.config.refusal_seconds
        for stream in self.incoming.values():
            stream.abort()
        self._tell_unheard(asyncio.get_running_loop().time())

    def _tell_unheard(self, now: float) -> None:
        """Report a peer that we refuse as lost, even while its records say that it is present."""
        if not self.retired and now >= self._told_at + UNHEARD_SECONDS:
            self._told_at = now
            self._hub.gone(self._peer)


def _multiaddrs(texts: list[str], peer: PeerId) -> list[bytes]:
    """Return the usable ones among claimed addresses, without the peer id that may end them.

    A relayed address is used only through an existing connection to the relay, so nobody can make us call a place by
    naming it as a relay.
    """
    usable = []
    for text in texts[:ADDRESSES_MAX]:
        place = text.removesuffix(f"/p2p/{peer}")
        with suppress(MultiaddrError, ValueError):
            usable.append(Multiaddr(place[place.index("/p2p/") :] if is_relayed(place) else place).to_bytes())
    return [address for address in usable if address]
