"""One direction of one lane to one peer, over a byte stream that another module opened.

Both classes are asyncio protocols rather than tasks: a small frame costs one callback and one system call at each end,
and no timer. One sweep over all streams checks their deadlines (`overdue`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import thread_time
from typing import Protocol, TypeAlias, cast

from dht.allowance import Allowance
from dht.daemon.calls import ByteStream
from dht.errors import NetworkError, PeerError
from peer.machine.throttle import SLICE_BYTES_MAX, DownloadGate, UploadGate
from peer.net.transport import (
    CONTROL_PAYLOAD_BYTES_MAX,
    Frame,
    FrameReader,
    Lane,
    Payload,
    QueueBudget,
    Traffic,
    TransportConfig,
    bytes_in,
    frame_bytes,
)

SLICE_BYTES = SLICE_BYTES_MAX
TURN_SECONDS = 0.02  # of our own work on one peer's frames, before other peers get their turn

Dial: TypeAlias = Callable[[], Awaitable[ByteStream]]


async def _arrived(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes that arrived before our protocol replaced this reader's; never waits."""
    reader.feed_eof()  # so that `read` returns without waiting for more
    return await reader.read()


class StreamEvents(Protocol):
    """Events of a stream, for the object that keeps the peer's state."""

    def stream_up(self) -> None: ...

    def stream_down(self) -> None:
        """Handle that an established stream broke without our closing it."""
        ...

    def dial_failed(self) -> None: ...

    def queue_empty(self) -> None: ...

    def received(self, frame: Frame) -> None: ...

    def misbehaved(self, error: PeerError) -> None: ...


class OutgoingLane(asyncio.Protocol):
    """A bounded queue and the stream that empties it, dialled when there is something to send.

    A broken stream or a failed dial drops the queue: by the time it is back, the protocol has newer messages.
    """

    def __init__(
        self, lane: Lane, config: TransportConfig, traffic: Traffic, dial: Dial, events: StreamEvents, gate: UploadGate
    ) -> None:
        self._waits = lane is Lane.BULK
        self._gate = gate
        self._config = config
        self._traffic = traffic
        self._dial = dial
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[bytes, bytes, Payload]] = deque()
        self._budget = QueueBudget(config)
        self._rest = memoryview(b"")  # the unwritten rest of a large payload
        self._begun_bytes = 0  # size of the unit being written: one large frame, or a batch of small ones
        self._begun_at: float | None = None  # the time since which the stream has not taken all of it
        self._writer: asyncio.StreamWriter | None = None
        self._lost: asyncio.Future[None] | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._opened_at = 0.0
        self._backoff_seconds = 0.0
        self._dial_not_before = 0.0
        self._paused = False
        self._flush_due = False
        self._closing = False

    @property
    def congested(self) -> bool:
        return self._budget.congested

    @property
    def busy(self) -> bool:
        """Whether a posted frame has not yet been handed to the operating system."""
        return bool(self._queue or self._rest or self._paused)

    @property
    def sending(self) -> bool:
        """Whether the stream is open and has not yet taken everything."""
        return self._writer is not None and self.busy

    def post(self, prefix: bytes, header: bytes, payload: Payload) -> None:
        """Queue one frame; never blocks."""
        if not self._budget.take(frame_bytes(header, payload)):
            self._traffic.frames_dropped += 1
            return
        self._queue.append((prefix, header, payload))
        if self._writer is None:
            if self._dialling is None:
                self._dialling = self._loop.create_task(self._open())
        elif not self._paused and not self._flush_due:
            # deferred, so that frames posted in the same turn of the loop share one write
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def overdue(self, now: float) -> bool:
        """Whether the frame being written has taken longer than the slowest permitted link needs."""
        return self._begun_at is not None and now > self._begun_at + self._config.transfer_seconds_max(
            self._begun_bytes
        )

    def abort(self) -> None:
        """Break the stream as a network failure would."""
        if self._writer is not None:
            self._writer.transport.abort()

    def proceed(self) -> None:
        """Continue to send, now that the gate admits us."""
        self._flush()

    async def close(self) -> None:
        """Drop the queue, end the stream or the dial, and wait until it is over. Final."""
        self._closing = True
        self._drop_queue()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        if self._lost is not None:
            self.abort()
            await self._lost

    async def _open(self) -> None:
        try:
            await asyncio.sleep(self._dial_not_before - self._loop.time())
            reader, writer = await self._dial()
        except NetworkError:
            self._dialling = None  # before listeners are told, who may want to send again
            self._back_off(lived_seconds=0.0)
            self._drop_queue()
            self._events.dial_failed()
            return
        self._dialling = None
        self._writer, self._lost = writer, self._loop.create_future()
        self._opened_at = self._loop.time()
        writer.transport.set_protocol(self)
        writer.transport.set_write_buffer_limits(0)  # so paused means: some bytes are not yet with the operating system
        self._events.stream_up()
        if reader.at_eof() or await _arrived(reader):  # it ended, or the remote sent something, before we listened
            self.abort()
        self._flush()

    def _flush(self) -> None:
        self._flush_due = False
        while self._writer is not None and not self._writer.is_closing() and not self._paused:
            if not (self._queue or self._rest):
                self._gate.leave(self)
                self._events.queue_empty()
                return
            if self._waits and not self._gate.admits(self, begun=bool(self._rest)):
                return
            chunk = self._next_chunk()
            self._traffic.bytes_sent += len(chunk)
            self._gate.sent(len(chunk))
            self._writer.write(chunk)

    def _next_chunk(self) -> bytes | memoryview:
        """Return the next slice of a large payload, else as many whole small frames as fit into one write."""
        if self._rest:
            size = self._gate.slice_bytes
            chunk, self._rest = self._rest[:size], self._rest[size:]
            return chunk
        parts: list[Payload] = []
        begun_bytes = 0
        while self._queue and begun_bytes < SLICE_BYTES and not self._rest:
            prefix, header, payload = self._queue.popleft()
            size_bytes = frame_bytes(header, payload)
            self._budget.give_back(size_bytes)
            begun_bytes += size_bytes
            parts += (prefix, header)
            if bytes_in(payload) <= CONTROL_PAYLOAD_BYTES_MAX:
                parts.append(payload)
            else:
                self._rest = memoryview(payload).cast("B")
        self._begun_bytes, self._begun_at = begun_bytes, None
        return b"".join(parts)

    def pause_writing(self) -> None:
        self._paused = True
        if self._begun_at is None:
            self._begun_at = self._loop.time()

    def resume_writing(self) -> None:
        self._paused = False
        if not self._rest:
            self._begun_at = None
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.abort()  # the remote may not send on a stream that we opened

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer = None
        self._paused = False
        self._back_off(self._loop.time() - self._opened_at)
        self._drop_queue()
        if self._lost is not None:
            self._lost.set_result(None)
        if not self._closing:
            self._events.stream_down()

    def _back_off(self, lived_seconds: float) -> None:
        # a stream that broke soon after it was opened counts as a failed dial
        config = self._config
        longer = 0.0 if lived_seconds > config.backoff_seconds_max else 2 * self._backoff_seconds
        self._backoff_seconds = min(max(longer, config.backoff_seconds_min), config.backoff_seconds_max)
        self._dial_not_before = self._loop.time() + self._backoff_seconds

    def _drop_queue(self) -> None:
        self._traffic.frames_dropped += len(self._queue) + bool(self._rest)
        self._queue.clear()
        self._rest = memoryview(b"")
        self._begun_at = None
        self._budget.reset()
        self._gate.leave(self)
        self._events.queue_empty()


@dataclass(frozen=True, slots=True)
class Intake:
    """The means to read a stream. All streams of a loop may share `scratch`: it is used within one callback only."""

    lane: Lane
    scratch: memoryview
    gate: DownloadGate
    patience: Allowance  # seconds of our work that the sender's frames may cost, in both lanes together


class IncomingStream(asyncio.BufferedProtocol):
    """Frames from one authenticated peer. Read-only: nothing is ever written back.

    While the owner's limit or this peer's allowance requires a rest, nothing is read, and the network then holds the
    sender back. The sender's deadline moves by that time.
    """

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        config: TransportConfig,
        intake: Intake,
        traffic: Traffic,
        events: StreamEvents,
    ) -> None:
        self._writer = writer
        self._config = config
        self._intake = intake
        self._scratch = intake.scratch[: intake.gate.slice_bytes]
        self._transport = cast(asyncio.ReadTransport, writer.transport)  # a socket's transport is both
        self._rest: asyncio.TimerHandle | None = None  # the timer that ends a pause in reading
        self._late = b""  # read already, handled after the pause
        self._traffic = traffic
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(config.payload_bytes_max)
        self._begun_at: float | None = None  # time of the first byte of the unfinished frame
        self._aborted = False
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def held_bytes(self) -> int:
        """Bytes of unfinished frames in memory."""
        return self._reader.held_bytes + len(self._late)

    async def take_over(self, reader: asyncio.StreamReader) -> None:
        """Replace the stream's own reader, which costs a task switch per read, by this protocol."""
        self._writer.transport.set_protocol(self)
        self._events.stream_up()
        self._take(memoryview(await _arrived(reader)))

    def limit(self, payload_bytes_max: int) -> None:
        """Refuse longer payloads from now on."""
        self._reader.limit(payload_bytes_max)

    def overdue(self, now: float) -> bool:
        """Whether one frame has been under way for longer than the slowest permitted link needs."""
        return self._begun_at is not None and now > self._begun_at + self._config.transfer_seconds_max(
            self._reader.unfinished_bytes
        )

    def abort(self) -> None:
        """End the stream from our side; not reported as `stream_down`."""
        self._aborted = True
        self._writer.transport.abort()

    async def close(self) -> None:
        """End the stream and wait until it is over."""
        self.abort()
        await self.lost

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._scratch[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        self._late = b""
        if self._rest is not None:
            self._rest.cancel()
        if not self.lost.done():
            self.lost.set_result(None)
        if not self._aborted:
            self._events.stream_down()

    def _take(self, data: memoryview) -> None:
        """Count and read newly arrived bytes."""
        self._traffic.bytes_received += len(data)
        self._intake.gate.received(len(data), self._loop.time())
        if self._rest is None:
            self._read(data)
        else:
            self._late += data

    def _read(self, data: memoryview) -> None:
        """Hand frames on until none is left, or until other peers must get their turn.

        Our thread's CPU time counts, not the clock: a peer is not to blame if another program uses the core.
        """
        began = busy = thread_time()
        while len(data) and not self._aborted and busy - began < TURN_SECONDS and not self._impatient:
            try:
                frame, data = self._reader.take(data)
            except PeerError as error:
                self._events.misbehaved(error)
                return
            if not self._reader.unfinished_bytes:
                self._begun_at = None
            elif frame is not None or self._begun_at is None:
                self._begun_at = self._loop.time()
            if frame is not None:
                self._events.received(frame)
            busy, before = thread_time(), busy
            self._intake.patience.take(busy - before, self._loop.time())
        if not self._aborted:
            self._late = bytes(data)
            self._rest_if_due()

    @property
    def _impatient(self) -> bool:
        return self._intake.patience.wait_seconds(self._loop.time()) > 0

    def _rest_if_due(self) -> bool:
        """Pause reading for as long as the limits require."""
        now = self._loop.time()
        wait_seconds = self._intake.patience.wait_seconds(now)
        if self._intake.lane is Lane.BULK:
            wait_seconds = max(wait_seconds, self._intake.gate.wait_seconds(now))
        if not (wait_seconds or self._late) or self._writer.is_closing():
            return False
        if self._begun_at is not None:
            self._begun_at += wait_seconds
        self._transport.pause_reading()
        self._rest = self._loop.call_later(wait_seconds, self._read_on)
        return True

    def _read_on(self) -> None:
        self._rest = None
        late, self._late = self._late, b""
        self._read(memoryview(late))
        if self._rest is None and not self._writer.is_closing():
            self._transport.resume_reading()
