"""The port that carries frames between peers, and what every implementation of it shares.

A frame is a small header (one encoded control message) and a payload (tensor bytes, often empty). Sending is fire and
forget: nothing here retries, because the round protocol does (design §6.2). Small frames and bulk frames travel in two
lanes, each in order, so that a vote never waits behind a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

from dht.errors import PeerError
from dht.identity import PeerId
from dht.wire import MESSAGE_BYTES_MAX

PREFIX_BYTES = 8  # header length and payload length, four bytes each, big-endian
HEADER_BYTES_MAX = MESSAGE_BYTES_MAX
PAYLOAD_BYTES_END = 1 << 32  # exclusive bound of a payload's length, which has four bytes
CONTROL_PAYLOAD_BYTES_MAX = 64 << 10  # a frame with a larger payload takes the bulk lane

Payload: TypeAlias = bytes | bytearray | memoryview
OnFrame: TypeAlias = Callable[[PeerId, bytes, bytes], None]
OnGone: TypeAlias = Callable[[PeerId], None]


class Lane(StrEnum):
    """A class of frames that keeps its own order."""

    CONTROL = "control"
    BULK = "bulk"


class Frame(NamedTuple):
    header: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """Bounds of a transport. Queue bounds hold per peer and lane; one peer can never fill another's queue."""

    payload_bytes_max: int = 64 << 20
    queue_bytes_max: int = 128 << 20
    queue_frames_max: int = 1024
    unfinished_bytes_max: int = 512 << 20  # received bytes of incomplete frames, over all peers
    peers_max: int = 128  # beyond it, the least recently used peer's streams and counters are dropped first
    connect_timeout_seconds: float = 10.0
    frame_seconds: float = 10.0
    frame_bytes_per_second_min: float = float(64 << 10)
    backoff_seconds_min: float = 0.2
    backoff_seconds_max: float = 5.0
    refusal_seconds: float = 30.0  # for which a peer that broke the framing is refused
    busy_share: float = 0.25  # of our loop's time that one peer's frames may take; further frames wait in its streams
    busy_seconds_at_once: float = 0.5
    streams_per_second: float = 2.0  # that one peer may open; honest peers keep theirs open
    streams_at_once: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.payload_bytes_max < PAYLOAD_BYTES_END:
            raise ValueError("payload_bytes_max must fit into four bytes")
        if min(self.queue_bytes_max, self.queue_frames_max, self.unfinished_bytes_max, self.peers_max) < 1:
            raise ValueError("the bounds of queues, unfinished frames and peers must be at least 1")
        if min(self.connect_timeout_seconds, self.frame_seconds, self.frame_bytes_per_second_min) <= 0:
            raise ValueError("timeouts and the lowest rate must be positive")
        if min(self.busy_share, self.busy_seconds_at_once, self.streams_per_second, self.streams_at_once) <= 0:
            raise ValueError("what one peer may take of us must be more than nothing")
        if not 0 < self.backoff_seconds_min <= self.backoff_seconds_max:
            raise ValueError("backoff_seconds_min must be positive and at most backoff_seconds_max")

    def transfer_seconds_max(self, frame_bytes: int) -> float:
        """Return how long one frame may take from its first byte to its last, however slowly the bytes arrive."""
        return self.frame_seconds + frame_bytes / self.frame_bytes_per_second_min


@dataclass(slots=True)
class Traffic:
    """Traffic to and from one peer, in bytes on the stream (prefix, header and payload)."""

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_dropped: int = 0
    congested: bool = False


class Transport(Protocol):
    """Carries frames to and from named peers. Lives in one event loop; no method is thread-safe."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def traffic(self) -> Traffic:
        """Totals since the start; `congested` is true while any peer is."""
        ...

    def traffic_of(self, peer: PeerId) -> Traffic:
        """A snapshot for one peer; all zeros for a peer that is unknown or was forgotten (`peers_max`)."""
        ...

    def post(self, peer: PeerId, header: bytes, payload: Payload = b"") -> None:
        """Queue one frame and return at once.

        `payload` is not copied: it must be contiguous and stay unchanged until sent. A frame beyond the bounds of the
        queue is dropped and counted, and the peer counts as congested until its queue is half empty. Before `start`
        and after `close` nothing is sent. Raises ValueError for a frame to ourselves, without a header or over the
        size limits.
        """
        ...

    async def start(self, on_frame: OnFrame, on_gone: OnGone) -> None:
        """Begin to deliver. Both callbacks run in the event loop and must not block.

        `on_frame(sender, header, payload)`: the sender is authenticated by the connection, never read from the frame.
        `on_gone(peer)`: an established stream broke, dialling failed, or what the peer sends is refused for a while; a
        hint about timing, never proof of anything.
        """
        ...

    async def flush(self, timeout_seconds: float) -> bool:
        """Wait until every queue is empty and handed to the network; False if that took too long."""
        ...

    async def close(self) -> None:
        """Drop queued frames, break every stream and wait until all have ended. Idempotent."""
        ...


def frame_bytes(header: bytes, payload: Payload) -> int:
    """Return the size of a frame on the stream, prefix included."""
    return PREFIX_BYTES + len(header) + bytes_in(payload)


class QueueBudget:
    """Counts what one queue holds and says when it is full."""

    def __init__(self, config: TransportConfig) -> None:
        self._bytes_max = config.queue_bytes_max
        self._frames_max = config.queue_frames_max
        self._bytes = 0
        self._frames = 0
        self.congested = False

    @property
    def frames(self) -> int:
        return self._frames

    def take(self, frame_bytes: int) -> bool:
        """Take room for one more frame, and return whether there was any. An oversized frame still passes alone."""
        fits = self._frames < self._frames_max and (not self._frames or self._bytes + frame_bytes <= self._bytes_max)
        if fits:
            self._bytes += frame_bytes
            self._frames += 1
        else:
            self.congested = True
        return fits

    def give_back(self, frame_bytes: int) -> None:
        """Record that one frame has left the queue."""
        self._bytes -= frame_bytes
        self._frames -= 1
        if 2 * self._frames <= self._frames_max and 2 * self._bytes <= self._bytes_max:
            self.congested = False

    def reset(self) -> None:
        """Record that the whole queue was dropped."""
        self._bytes = self._frames = 0
        self.congested = False


def bytes_in(payload: Payload) -> int:
    """Return the length in bytes, also of a memoryview over wider elements."""
    return payload.nbytes if isinstance(payload, memoryview) else len(payload)


def lane_of(payload: Payload) -> Lane:
    """Return the lane in which this payload travels."""
    return Lane.CONTROL if bytes_in(payload) <= CONTROL_PAYLOAD_BYTES_MAX else Lane.BULK


def frame_prefix(header: bytes, payload: Payload, payload_bytes_max: int) -> bytes:
    """Return the bytes that announce a frame; raises ValueError if it is over a limit or has no header."""
    payload_bytes = bytes_in(payload)
    if not 0 < len(header) <= HEADER_BYTES_MAX or payload_bytes > payload_bytes_max:
        raise ValueError(f"a frame of {len(header)} + {payload_bytes} bytes is not within the limits")
    return len(header).to_bytes(4, "big") + payload_bytes.to_bytes(4, "big")


class FrameReader:
    """Cuts a byte stream into frames, however it arrives. Holds at most one unfinished frame, as far as received."""

    def __init__(self, payload_bytes_max: int) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._partial = bytearray()
        self._ends: tuple[int, int] | None = None  # where header and whole frame end, once announced

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished frame that have been received."""
        return len(self._partial)

    @property
    def unfinished_bytes(self) -> int:
        """Whole size of the frame that has begun and not ended (the prefix while that is cut); 0 between frames."""
        if not self._partial:
            return 0
        return PREFIX_BYTES if self._ends is None else self._ends[1]

    def limit(self, payload_bytes_max: int) -> None:
        """Apply another limit to frames whose prefix has not been read."""
        self._payload_bytes_max = payload_bytes_max

    def feed(self, data: Payload) -> list[Frame]:
        """Return all frames that `data` completes; raises as `take`."""
        view = memoryview(data)
        frames: list[Frame] = []
        while len(view):
            frame, view = self.take(view)
            if frame is not None:
                frames.append(frame)
        return frames

    def take(self, view: memoryview) -> tuple[Frame | None, memoryview]:
        """Return the next frame that `view` completes, and the rest of `view`, which may be reused afterwards.

        Raises PeerError as soon as an announced length is over its limit, before any of the frame is stored. The reader
        must not be used after that.
        """
        if self._partial:
            return self._continue(view)
        ends = self._announced(view) if len(view) >= PREFIX_BYTES else None
        if ends is not None and len(view) >= ends[1]:
            return Frame(bytes(view[PREFIX_BYTES : ends[0]]), bytes(view[ends[0] : ends[1]])), view[ends[1] :]
        self._partial += view
        self._ends = ends
        return None, view[len(view) :]

    def _continue(self, view: memoryview) -> tuple[Frame | None, memoryview]:
        """Extend the unfinished frame."""
        if self._ends is None:
            view = self._fill(view, PREFIX_BYTES)
            if len(self._partial) < PREFIX_BYTES:
                return None, view
            self._ends = self._announced(self._partial)
        header_end, end = self._ends
        view = self._fill(view, end)
        if len(self._partial) < end:
            return None, view
        with memoryview(self._partial) as whole:
            frame = Frame(bytes(whole[PREFIX_BYTES:header_end]), bytes(whole[header_end:]))
        self._partial, self._ends = bytearray(), None
        return frame, view

    def _fill(self, view: memoryview, size: int) -> memoryview:
        """Take what is missing to this size; return the rest."""
        missing = size - len(self._partial)
        self._partial += view[:missing]
        return view[missing:]

    def _announced(self, frame: bytearray | memoryview) -> tuple[int, int]:
        """Return the offsets at which the header and the whole frame end, from the prefix."""
        header_bytes = int.from_bytes(frame[:4], "big")
        payload_bytes = int.from_bytes(frame[4:PREFIX_BYTES], "big")
        if not 0 < header_bytes <= HEADER_BYTES_MAX or payload_bytes > self._payload_bytes_max:
            raise PeerError(f"a frame of {header_bytes} + {payload_bytes} bytes is not within the limits")
        return PREFIX_BYTES + header_bytes, PREFIX_BYTES + header_bytes + payload_bytes
