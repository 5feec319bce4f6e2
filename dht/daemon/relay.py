"""libp2p's circuit relay, served by us instead of the daemon: for members only, within the owner's limits.

Two peers that cannot be dialled reach each other through one that both are connected to. It forwards their end-to-end
encrypted bytes. The daemon would do that for any key, without end and past the owner's limits (docs/adr/0069). Unlike
libp2p's own relays, ours needs no reservation: the called peer's daemon asks for none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any

from google.protobuf.message import DecodeError
from hivemind.p2p import PeerID

from dht.allowance import CallerLimits
from dht.daemon import calls
from dht.daemon.calls import DAEMON_ERRORS, ByteStream
from dht.daemon.messages import PEER, field, framed, message_class, read_message
from dht.identity import PeerId

HOP = "/libp2p/circuit/relay/0.2.0/hop"  # spoken by a caller with us
STOP = "/libp2p/circuit/relay/0.2.0/stop"  # spoken by us with the peer that it calls
MESSAGE_BYTES_MAX = 4096  # a peer's id, and addresses that are ignored
CIRCUITS_MAX = 256
CIRCUITS_EACH_MAX = 32  # of one peer, whether it calls or is called
CIRCUITS_OF_PAIR_MAX = 2  # one of them may hang
ASK_SECONDS_MAX = 10.0  # until a circuit is open
ASKED_PER_SECOND = 1.0
ASKED_AT_ONCE = 16.0
ALL_ASKED_PER_SECOND = 64.0
CALLERS_KEPT = 1024
IDLE_SECONDS = 900.0  # rounds of large models are minutes apart
IDLE_BYTES = 1 << 13  # a circuit with less in that time is idle; libp2p's keep-alive alone takes some 4 KiB
SLICE_BYTES = 1 << 16

# one class for both protocols: `hop` has its status in field 5, `stop` in field 4
Message = message_class("relay", field("type", 1), field("peer", 2, PEER), field("stopped", 4), field("hopped", 5))
HOP_CONNECT, HOP_STATUS = 1, 2
STOP_CONNECT, STOP_STATUS = 0, 1


class Status(IntEnum):
    """libp2p's status codes for relays."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


class RelayLimits:
    """The owner's limits on relayed traffic. Nothing is admitted until code that knows the limits sets them."""

    def __init__(self) -> None:
        self.admits: Callable[[PeerId], bool] = lambda _: False
        self.wait: Callable[[int], Awaitable[None]] = _no_wait
        self.carried_bytes = 0  # each came in and went out

    async def carry(self, size_bytes: int) -> None:
        """Wait until so many bytes may come in and go out, and count them."""
        await self.wait(size_bytes)
        self.carried_bytes += size_bytes


async def _no_wait(_: int) -> None:
    """Wait for nothing: no limit is set."""


Hosts = Callable[[], Awaitable[Mapping[PeerId, str]]]


class Relay:
    """Serves callers' streams. `hosts` gives the IP address of each connected peer, empty for relayed peers."""

    def __init__(self, p2p: Any, hosts: Hosts, relay_limits: RelayLimits, clock: Callable[[], float]) -> None:
        self._p2p = p2p
        self._hosts = hosts
        self._limits = relay_limits
        self._clock = clock
        self._callers = CallerLimits(ASKED_PER_SECOND, ASKED_AT_ONCE, ALL_ASKED_PER_SECOND, CALLERS_KEPT)
        self._circuits: Counter[tuple[PeerId, PeerId]] = Counter()

    async def serve(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one stream until it is refused or its circuit has ended."""
        caller = PeerId(info.peer_id.to_base58())
        try:
            with suppress(*DAEMON_ERRORS, ValueError):
                # read even if the caller is refused: closing a stream with unread bytes resets it and loses the answer
                async with asyncio.timeout(ASK_SECONDS_MAX):
                    request = await read_message(reader, MESSAGE_BYTES_MAX)
                if not self._limits.admits(caller):
                    refused: Status | None = Status.PERMISSION_DENIED
                elif not self._callers.take(caller, self._clock()):
                    refused = Status.RESOURCE_LIMIT_EXCEEDED
                else:
                    refused = await self._circuit(caller, request, (reader, writer))
                if refused is not None:
                    writer.write(told(refused))  # so few bytes are sent at once, without a drain
        finally:
            writer.transport.abort()

    async def _circuit(self, caller: PeerId, request: bytes, near: ByteStream) -> Status | None:
        """Forward bytes between the caller and its target to the end; returns the reason if the circuit is refused."""
        target = called(request)
        async with asyncio.timeout(ASK_SECONDS_MAX):
            hosts = await self._hosts()
        if isinstance(target, Status):
            return target
        if target == caller or not (hosts.get(target) and hosts.get(caller)):  # no relay behind a relay
            return Status.NO_RESERVATION
        if not self._limits.admits(target):
            return Status.PERMISSION_DENIED
        if not self._has_room(caller, target):
            return Status.RESOURCE_LIMIT_EXCEEDED
        self._circuits[caller, target] += 1
        try:
            far = await self._call(target, caller)
            if far is None:
                return Status.CONNECTION_FAILED
            try:
                near[1].write(told(Status.OK))
                await self._join(near, far, (caller, target))
            finally:
                far[1].transport.abort()
        finally:
            self._circuits[caller, target] -= 1
            self._circuits += Counter()  # forgets pairs that have none
        return None

    def _has_room(self, caller: PeerId, target: PeerId) -> bool:
        of_each = [sum(self._circuits[pair] for pair in self._circuits if peer in pair) for peer in (caller, target)]
        return (
            self._circuits[caller, target] < CIRCUITS_OF_PAIR_MAX
            and max(of_each) < CIRCUITS_EACH_MAX
            and self._circuits.total() < CIRCUITS_MAX
        )

    async def _call(self, target: PeerId, caller: PeerId) -> ByteStream | None:
        """Open a stream to the target on the caller's behalf; returns None if the target does not take it."""
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                reader, writer = await calls.open_stream(self._p2p, target, STOP, ASK_SECONDS_MAX)
                try:
                    writer.write(framed(calling(caller)))
                    if takes(await read_message(reader, MESSAGE_BYTES_MAX)):
                        return reader, writer
                except BaseException:
                    writer.transport.abort()
                    raise
        except (*DAEMON_ERRORS, ValueError):
            return None
        writer.transport.abort()
        return None

    async def _join(self, near: ByteStream, far: ByteStream, ends: tuple[PeerId, PeerId]) -> None:
        """Forward bytes both ways until a side ends or is no longer admitted, or the circuit is idle for long."""
        passed = 0

        async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal passed
            sink.transport.set_write_buffer_limits(0)  # so that nothing is left in a buffer when the circuit ends
            while (some := await source.read(SLICE_BYTES)) and all(map(self._limits.admits, ends)):
                await self._limits.carry(len(some))
                passed += len(some)
                sink.write(some)
                await sink.drain()

        async def fall_idle() -> None:
            before = -IDLE_BYTES
            while passed - before >= IDLE_BYTES:
                before = passed
                await asyncio.sleep(IDLE_SECONDS)

        parts = [forward(near[0], far[1]), forward(far[0], near[1]), fall_idle()]
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def called(request: bytes) -> PeerId | Status:
    """Return the peer that a caller's request names, or the status that refuses it. Pure."""
    try:
        asked = Message.FromString(request)
        if asked.type != HOP_CONNECT:
            return Status.RESERVATION_REFUSED if asked.type == 0 else Status.UNEXPECTED_MESSAGE
        return PeerId(PeerID(asked.peer.id).to_base58()) if asked.peer.id else Status.MALFORMED_MESSAGE
    except (DecodeError, ValueError):
        return Status.MALFORMED_MESSAGE


def calling(caller: PeerId) -> bytes:
    """Return the message that announces a caller to its target.

    It states no limits, because libp2p makes little use of a limited connection.
    """
    message = Message(type=STOP_CONNECT)
    message.peer.id = calls.raw_of(caller)
    return bytes(message.SerializeToString())


def takes(answer: bytes) -> bool:
    """Whether the target's answer takes the call."""
    try:
        said = Message.FromString(answer)
    except DecodeError:
        return False
    return bool(said.type == STOP_STATUS and said.stopped == Status.OK)


def told(status: Status) -> bytes:
    """Return the answer to a caller, with its length in front."""
    return framed(bytes(Message(type=HOP_STATUS, hopped=status).SerializeToString()))
