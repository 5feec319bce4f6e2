"""Attacks by messages as such, whatever their meaning in the protocol.

Such a peer trains and takes part honestly. At the same time it attacks other peers' input from the network: frames,
streams, and handlers of records. It signs nothing false, so nothing here convicts it.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import ClassVar, Protocol, TypeAlias

from coordinator.wire.messages import (
    AgainNote,
    AskChainNote,
    AskEvidenceNote,
    AskHeardNote,
    Message,
    NeedNote,
    PartNote,
)
from coordinator.wire.openings import OpenNote
from dht.errors import MusterError
from dht.identity import PeerId
from dht.statement import DIGEST_BYTES, Statement
from peer.net.frames import (
    HeadsAsk,
    ManifestAsk,
    ProbeAsk,
    StateAsk,
    StatePiece,
    StatusAsk,
    TailAsk,
    Transfer,
    encode_header,
)
from peer.net.transport import HEADER_BYTES_MAX, Lane, TransportConfig

RECORD_HANDLERS = ("DHTProtocol.rpc_ping", "DHTProtocol.rpc_store", "DHTProtocol.rpc_find")
CALL_BYTES_MAX = (4 << 20) - 1024  # libp2p's daemon accepts no longer calls
CALL_SECONDS_MAX = 3.0
KEPT_FRAMES_MAX = 4096
KEPT_BYTES_MAX = 32 << 20

ByteStream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AttackLine(Protocol):
    """The network as an attack needs it, including access that honest peers never use."""

    def post(self, peer: PeerId, header: bytes, payload: bytes) -> None:
        """Send one frame, as an honest peer does."""
        ...

    async def open(self, peer: PeerId, lane: Lane | str) -> ByteStream:
        """Open a raw stream to a lane, or to a handler of records; raises NetworkError or OSError."""
        ...

    async def call(self, peer: PeerId, handler: str, request: bytes) -> None:
        """Make a unary call with these bytes; raises any error that came back instead of an answer."""
        ...


class Tap:
    """Frames that this peer has sent or received, newest last. Bounded."""

    def __init__(self) -> None:
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._bytes = 0
        self.groups: OrderedDict[bytes, None] = OrderedDict()  # named in frames, newest last

    def note(self, header: bytes, payload: bytes) -> None:
        """Record one frame."""
        self._frames.append((header, payload))
        self._bytes += len(header) + len(payload)
        while len(self._frames) > KEPT_FRAMES_MAX or self._bytes > KEPT_BYTES_MAX:
            self._bytes -= sum(map(len, self._frames.popleft()))

    def note_group(self, group: bytes) -> None:
        """Record a group that a frame named."""
        self.groups[group] = None
        self.groups.move_to_end(group)
        while len(self.groups) > 4:
            self.groups.popitem(last=False)

    def some(self, count: int, draw: random.Random) -> list[tuple[bytes, bytes]]:
        """Return random frames of any age."""
        return draw.choices(self._frames, k=count) if self._frames else []


class MessageAttack:
    """One hostile peer's attack on all others. A new attack is a subclass with its own `attack`."""

    pause_seconds: ClassVar[float] = 0.05  # between two passes over all peers

    def __init__(self, line: AttackLine, peers: Collection[PeerId], draw: random.Random) -> None:
        self.line = line
        self.peers = sorted(peers)
        self.draw = draw
        self.tap = Tap()

    async def run(self) -> None:
        """Attack until cancelled; an unreachable peer does not stop the attack on others."""
        while True:
            for peer in self.peers:
                with suppress(MusterError, OSError, EOFError, TimeoutError, ValueError):
                    await self.attack(peer)
            await asyncio.sleep(self.pause_seconds)

    async def attack(self, peer: PeerId) -> None:
        """Attack this peer once."""
        raise NotImplementedError


class Replay(MessageAttack):
    """Frames sent again, signed by any peer and of any age, with their payloads."""

    frames: ClassVar[int] = 16

    async def attack(self, peer: PeerId) -> None:
        for header, payload in self.tap.some(self.frames, self.draw):
            self.line.post(peer, header, payload)


class Oversized(MessageAttack):
    """Input beyond every limit: announced, unannounced, in a frame, beside it, and in a call."""

    pause_seconds = 0.5

    def __init__(self, line: AttackLine, peers: Collection[PeerId], draw: random.Random) -> None:
        super().__init__(line, peers, draw)
        self._ways: tuple[Callable[[PeerId], Awaitable[None]], ...] = (
            self._announced,
            self._endless,
            self._long_header,
            self._long_payload,
            self._many_keys,
        )
        self._turn = 0
        self._payload = bytes(TransportConfig().payload_bytes_max)

    async def attack(self, peer: PeerId) -> None:
        self._turn += 1
        async with asyncio.timeout(CALL_SECONDS_MAX):
            await self._ways[self._turn % len(self._ways)](peer)

    async def _announced(self, peer: PeerId) -> None:
        """Announce the longest frame that a prefix can express."""
        await self._write(peer, Lane.CONTROL, b"\xff" * 8, 1 << 20)

    async def _endless(self, peer: PeerId) -> None:
        """Announce a frame within all limits, then send bytes that are not one."""
        longest = TransportConfig().payload_bytes_max
        await self._write(peer, Lane.BULK, _prefix(HEADER_BYTES_MAX, longest), 2 * longest)

    async def _long_header(self, peer: PeerId) -> None:
        """Send a statement of a million empty values."""
        count = HEADER_BYTES_MAX - 6
        self.line.post(peer, b"\x00\xdd" + count.to_bytes(4, "big") + b"\xc0" * count, b"")

    async def _long_payload(self, peer: PeerId) -> None:
        """Send the longest payload, as a part of the newest group."""
        group = next(reversed(self.tap.groups), bytes(DIGEST_BYTES))
        self.line.post(peer, encode_header(PartNote(group=group, partition=0, turn=0)), self._payload)

    async def _many_keys(self, peer: PeerId) -> None:
        """Search for as many keys as fit into a call."""
        key = b"\x0a\x14" + self.draw.randbytes(20)  # the field's number and length, then a key
        await self.line.call(peer, RECORD_HANDLERS[2], key * (CALL_BYTES_MAX // len(key)))

    async def _write(self, peer: PeerId, lane: Lane, prefix: bytes, count: int) -> None:
        _, writer = await self.line.open(peer, lane)
        try:
            writer.write(prefix)
            for _ in range(0, count, 1 << 18):
                writer.write(bytes(1 << 18))
                await writer.drain()
        finally:
            writer.transport.abort()


class SlowLoris(MessageAttack):
    """Streams to all handlers, kept open: each began a message, gets a byte a second, and never ends."""

    pause_seconds = 1.0
    streams: ClassVar[int] = 4  # for each handler of each peer

    def __init__(self, line: AttackLine, peers: Collection[PeerId], draw: random.Random) -> None:
        super().__init__(line, peers, draw)
        self._open: dict[tuple[PeerId, str, int], ByteStream] = {}

    async def attack(self, peer: PeerId) -> None:
        for handler in (*Lane, *RECORD_HANDLERS):
            for number in range(self.streams):
                with suppress(MusterError, OSError, EOFError, TimeoutError):
                    await self._feed(peer, handler, number)

    async def _feed(self, peer: PeerId, handler: Lane | str, number: int) -> None:
        key = (peer, str(handler), number)
        held = self._open.get(key)
        if held is not None and (held[0].at_eof() or held[1].is_closing()):
            held[1].transport.abort()
            held = self._open.pop(key) and None
        if held is None:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                held = self._open[key] = await self.line.open(peer, handler)
            held[1].write(_prefix(1, 1 << 20) if isinstance(handler, Lane) else _call_prefix(1 << 20))
        held[1].write(b"\x00")

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            for _, writer in self._open.values():
                writer.transport.abort()


class Garbage(MessageAttack):
    """A flood of message-like input to every handler: altered frames, requests, parts that no peer committed."""

    frames: ClassVar[int] = 20
    part_bytes: ClassVar[int] = 32 << 10

    async def attack(self, peer: PeerId) -> None:
        for header, payload in self.tap.some(self.frames // 2, self.draw):
            self.line.post(peer, self._changed(header), payload)
        for _ in range(self.frames // 2):
            message = self._made()
            parts = isinstance(message, PartNote | StatePiece)
            self.line.post(peer, encode_header(message), self.draw.randbytes(self.part_bytes) if parts else b"")
        async with asyncio.timeout(CALL_SECONDS_MAX):
            await self.line.call(peer, self.draw.choice(RECORD_HANDLERS), self.draw.randbytes(1 << 10))

    def _changed(self, header: bytes) -> bytes:
        """Return the header with some bytes altered, so that its signature does not verify."""
        changed = bytearray(header)
        for _ in range(self.draw.randint(1, 4)):
            changed[self.draw.randrange(1, len(changed))] = self.draw.randrange(256)
        return bytes(changed)

    def _made(self) -> Message | Transfer:
        draw = self.draw
        digest = draw.randbytes(DIGEST_BYTES)
        group = draw.choice([digest, *self.tap.groups])
        made: tuple[Message | Transfer, ...] = (
            PartNote(group=group, partition=draw.randrange(8), turn=0),
            NeedNote(what=draw.choice(("part", "result")), group=group, partition=draw.randrange(8), turn=0),
            OpenNote(group=group, partition=draw.randrange(8), turn=0, seed=digest, own=draw.random() < 0.5),
            AskChainNote(fragment=0, version=draw.randrange(64), known=(digest,)),
            AskEvidenceNote(evidence=digest),
            AskHeardNote(fragment=0, version=draw.randrange(64), places=()),
            AgainNote(group=group, partitions=(draw.randrange(8),)),
            StateAsk(fragment=0, certificate=digest, piece=draw.randrange(64)),
            StatePiece(fragment=0, certificate=digest, piece=draw.randrange(64)),
            ManifestAsk(),
            StatusAsk(),
            ProbeAsk(ticket=draw.randrange(1 << 32), port=1),
            HeadsAsk(version=draw.randrange(64), digest=digest),
            TailAsk(fragment=0, version=draw.randrange(64), head=digest),
        )
        return draw.choice(made)


MESSAGE_ATTACKS: Mapping[str, type[MessageAttack]] = MappingProxyType(
    {"replay": Replay, "oversized": Oversized, "slow_loris": SlowLoris, "garbage": Garbage}
)
"""Message attacks by their `--attack` names."""


def group_named(message: Message | Transfer) -> bytes | None:
    """Return the group that a message names, if any."""
    if isinstance(message, PartNote | NeedNote | OpenNote):
        return message.group
    return (message.context.group or None) if isinstance(message, Statement) else None


def _prefix(header_bytes: int, payload_bytes: int) -> bytes:
    """Return the prefix of a frame (`peer.net.transport.frame_prefix`), without its limits."""
    return header_bytes.to_bytes(4, "big") + payload_bytes.to_bytes(4, "big")


def _call_prefix(length: int) -> bytes:
    """Return a protobuf length, seven bits to a byte."""
    found = bytearray()
    while length > 127:
        found.append(length & 127 | 128)
        length >>= 7
    return bytes([*found, length])
