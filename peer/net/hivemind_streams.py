"""One direction of one lane to one peer, over a byte stream that somebody else opened.

Both classes are asyncio protocols rather than tasks: a small frame costs one callback and one system call on either
side, and no timer. Deadlines are looked at by one sweep over all streams (`overdue`).
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
TURN_SECONDS = 0.02  # of our own work on one peer's frames, after which others have their turn

Dial: TypeAlias = Callable[[], Awaitable[ByteStream]]


async def _arrived(reader: asyncio.StreamReader) -> bytes:
    """What had come before a protocol of ours took this reader's place; never waits."""
    reader.feed_eof()  # so that `read` returns without waiting for more
    return await reader.read()


class StreamEvents(Protocol):
    """What a stream tells the keeper of the peer's state."""

    def stream_up(self) -> None: ...

    def stream_down(self) -> None:
        """An established stream broke, and not because we wanted it."""
        ...

    def dial_failed(self) -> None: ...

    def queue_empty(self) -> None: ...

    def received(self, frame: Frame) -> None: ...

    def misbehaved(self, error: PeerError) -> None: ...


class OutgoingLane(asyncio.Protocol):
    """A bounded queue and the stream that empties it, dialled when there is something to send.

    A broken stream or a failed dial drops the queue: by the time it is back the protocol has newer things to say.
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
        self._rest = memoryview(b"")  # what is still to be written of the large payload that was begun
        self._begun_bytes = 0  # size of what is being written: one large frame, or a batch of small ones
        self._begun_at: float | None = None  # since when the stream has not taken all of it
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
        """True while anything posted has not been handed to the operating system."""
        return bool(self._queue or self._rest or self._paused)

    @property
    def sending(self) -> bool:
        """True while the stream is there and has not taken everything."""
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
            # not at once: frames posted in the same turn of the loop then share one write
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def overdue(self, now: float) -> bool:
        """Has the frame being written been under way for longer than the slowest permitted link needs?"""
        return self._begun_at is not None and now > self._begun_at + self._config.transfer_seconds_max(
            self._begun_bytes
        )

    def abort(self) -> None:
        """Break the stream as if the network had."""
        if self._writer is not None:
            self._writer.transport.abort()

    def proceed(self) -> None:
        """The gate lets us send."""
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
            self._dialling = None  # before anyone is told, who may want to send again
            self._back_off(lived_seconds=0.0)
            self._drop_queue()
            self._events.dial_failed()
            return
        self._dialling = None
        self._writer, self._lost = writer, self._loop.create_future()
        self._opened_at = self._loop.time()
        writer.transport.set_protocol(self)
        writer.transport.set_write_buffer_limits(0)  # paused means: something is not yet with the operating system
        self._events.stream_up()
        if reader.at_eof() or await _arrived(reader):  # it ended, or the remote spoke, before we listened
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
        """The next slice of a large payload, else as many whole small frames as fit into one write."""
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
        self.abort()  # nobody has anything to say on a stream that we opened

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
        # a stream that broke soon after it was opened counts like a dial that failed
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
    """What a stream is read with. `scratch` may be shared by all streams of a loop: it is used within one callback."""

    lane: Lane
    scratch: memoryview
    gate: DownloadGate
    patience: Allowance  # seconds of our work that the sender's frames may cost, in both lanes together


class IncomingStream(asyncio.BufferedProtocol):
    """Frames from one authenticated peer. Read only: nothing is ever written back.

    While the owner's limit or our patience with this peer wants a rest, nothing is read; the network then holds its
    sender back. That time is not held against it.
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
        self._transport = cast(asyncio.ReadTransport, writer.transport)  # a socket's is both
        self._rest: asyncio.TimerHandle | None = None  # until we read on
        self._late = b""  # was read, and waits for the end of the rest
        self._traffic = traffic
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(config.payload_bytes_max)
        self._begun_at: float | None = None  # first byte of the unfinished frame
        self._aborted = False
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def held_bytes(self) -> int:
        """How much of unfinished frames is in memory."""
        return self._reader.held_bytes + len(self._late)

    async def take_over(self, reader: asyncio.StreamReader) -> None:
        """Replace the stream's own reader, which costs a task switch per read, by this protocol."""
        self._writer.transport.set_protocol(self)
        self._events.stream_up()
        self._take(memoryview(await _arrived(reader)))

    def limit(self, payload_bytes_max: int) -> None:
        """Take no longer payloads from now on."""
        self._reader.limit(payload_bytes_max)

    def overdue(self, now: float) -> bool:
        """Has one frame been under way for longer than the slowest permitted link needs?"""
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
        """Count and read what has just come."""
        self._traffic.bytes_received += len(data)
        self._intake.gate.received(len(data), self._loop.time())
        if self._rest is None:
            self._read(data)
        else:
            self._late += data

    def _read(self, data: memoryview) -> None:
        """Hand frames on, until all are, or until others have to have their turn.

        It is our thread's time that counts, not the clock's: who shares a core is not to blame for it.
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
        """Stop reading for as long as something has to wait."""
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
