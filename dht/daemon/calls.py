"""Requests to our own libp2p daemon, each on its own socket, which is closed however the request ends.

hivemind's calls leave their sockets open when they are cancelled, and the daemon answers late when it dials a host that
has vanished. Every failure is one of DAEMON_ERRORS; a TimeoutError is an OSError.

hivemind itself is not imported: it loads torch, and a command that only asks a question would wait for that.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import base58

from dht.daemon.p2pd import hivemind_folder
from dht.identity import PeerId

NAMES_KEPT = 2048
VARINT_BYTES_MAX = 10


class DaemonError(Exception):
    """Our own daemon could not do what it was asked, or sent a malformed length."""


DAEMON_ERRORS = (OSError, EOFError, DaemonError)


def _messages() -> Any:
    """Load the daemon's protobuf messages from hivemind's generated file, without importing hivemind."""
    found = importlib.util.spec_from_file_location("dht.daemon.p2pd_pb2", hivemind_folder() / "proto" / "p2pd_pb2.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


p2pd_pb2 = _messages()

ByteStream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
StreamHandler: TypeAlias = Callable[[Any, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ControlSocket:
    """The socket at which a daemon takes our requests; replaces hivemind's P2P where a daemon only calls others."""

    path: Path

    async def open_connection(self) -> ByteStream:
        return await asyncio.open_unix_connection(self.path)


async def connect(p2p: Any, peer: PeerId, addresses: Iterable[bytes], seconds: float) -> None:
    """Connect to a peer at one of these multiaddrs, or wherever the daemon knows it to be."""
    wanted = p2pd_pb2.ConnectRequest(peer=raw_of(peer), addrs=list(addresses))
    await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=wanted), seconds)


async def own_addresses(p2p: Any, seconds: float) -> list[bytes]:
    """Return the multiaddrs at which the daemon believes it is visible."""
    found = await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY), seconds)
    return list(found.identify.addrs)


async def own_id(p2p: Any, seconds: float) -> PeerId:
    """Return the peer id of the daemon's key."""
    found = await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY), seconds)
    return _name(found.identify.id)


async def connected_peers(p2p: Any, seconds: float) -> list[tuple[PeerId, list[bytes]]]:
    """Return the connected peers, each with the multiaddrs of its connections."""
    found = await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS), seconds)
    return [(_name(one.id), list(one.addrs)) for one in found.peers]


@lru_cache(maxsize=NAMES_KEPT)  # the same peers are listed each time, and base58 is slow
def _name(raw: bytes) -> PeerId:
    return PeerId(base58.b58encode(raw).decode())


@lru_cache(maxsize=NAMES_KEPT)
def raw_of(peer: PeerId) -> bytes:
    """Return a peer's id in the binary form that libp2p sends."""
    return bytes(base58.b58decode(peer))


async def addresses_of(p2p: Any, peer: PeerId, seconds: float) -> list[bytes]:
    """Return the multiaddrs at which a connected peer claims to listen."""
    asked = p2pd_pb2.DHTRequest(type=p2pd_pb2.DHTRequest.FIND_PEER, peer=raw_of(peer))
    found = await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.DHT, dht=asked), seconds)
    return list(found.dht.peer.addrs)


async def open_stream(p2p: Any, peer: PeerId, handler: str, seconds: float) -> ByteStream:
    """Open a stream to this handler of a peer."""
    wanted = p2pd_pb2.StreamOpenRequest(peer=raw_of(peer), proto=[handler])
    request = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=wanted)
    async with asyncio.timeout(seconds):
        reader, writer = await _connection(p2p)
        try:
            await _answer(reader, writer, request)
        except BaseException:
            writer.transport.abort()
            raise
    return reader, writer


async def add_handler(p2p: Any, name: str, handler: StreamHandler, seconds: float) -> None:
    """Call `handler` for every stream that a remote peer opens under this name, instead of the daemon's own one."""
    if p2p._listen_task is None:
        p2p._start_listening()
    control = p2p._client.control
    control.handlers[name] = handler
    wanted = p2pd_pb2.StreamHandlerRequest(addr=control.listen_maddr.to_bytes(), proto=[name], balanced=False)
    await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=wanted), seconds)


async def disconnect(p2p: Any, peer: PeerId, seconds: float) -> None:
    """Close all connections to a peer."""
    wanted = p2pd_pb2.DisconnectRequest(peer=raw_of(peer))
    await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=wanted), seconds)


async def remove_handler(p2p: Any, name: str, seconds: float) -> None:
    """Stop accepting streams under this name."""
    control = p2p._client.control
    wanted = p2pd_pb2.RemoveStreamHandlerRequest(addr=control.listen_maddr.to_bytes(), proto=[name])
    request = p2pd_pb2.Request(type=p2pd_pb2.Request.REMOVE_STREAM_HANDLER, removeStreamHandler=wanted)
    await _ask(p2p, request, seconds)
    control.handlers.pop(name, None)


async def _ask(p2p: Any, request: Any, seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        reader, writer = await _connection(p2p)
        try:
            return await _answer(reader, writer, request)
        finally:
            writer.transport.abort()


async def _connection(p2p: Any) -> ByteStream:
    connector = p2p if isinstance(p2p, ControlSocket) else p2p._client.control.daemon_connector
    opened: ByteStream = await connector.open_connection()
    return opened


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Any) -> Any:
    asked = request.SerializeToString()
    writer.write(varint(len(asked)) + asked)
    await writer.drain()
    response = p2pd_pb2.Response()
    response.ParseFromString(await reader.readexactly(await read_varint(reader)))
    if response.type == p2pd_pb2.Response.ERROR:
        raise DaemonError(response.error.msg)
    return response


def varint(number: int) -> bytes:
    """Encode a number as a varint: seven bits a byte, the lowest first; the eighth bit says that more follow."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


async def read_varint(reader: asyncio.StreamReader) -> int:
    """Read one varint; raises DaemonError if it is too long, EOFError at the end of the stream."""
    number = 0
    for place in range(VARINT_BYTES_MAX):
        (byte,) = await reader.readexactly(1)
        number |= (byte & 0x7F) << 7 * place
        if byte <= 0x7F:
            return number
    raise DaemonError("a length without an end")
