"""One question to our own libp2p daemon, on a socket of its own that is closed however the question ends.

hivemind's calls leave theirs open when they are given up, and a daemon that calls a host which has vanished answers
late. Raises what hivemind's calls raise: OSError (a TimeoutError is one), EOFError or P2PDaemonError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2

from dht.identity import PeerId

NAMES_KEPT = 2048
DAEMON_ERRORS = (OSError, EOFError, P2PDaemonError)

ByteStream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
StreamHandler: TypeAlias = Callable[[Any, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connect(p2p: Any, peer: PeerId, addresses: Iterable[bytes], seconds: float) -> None:
    """Connect to a peer at one of these multiaddrs, or wherever the daemon knows it to be."""
    wanted = p2pd_pb2.ConnectRequest(peer=PeerID.from_base58(peer).to_bytes(), addrs=list(addresses))
    await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=wanted), seconds)


async def own_addresses(p2p: Any, seconds: float) -> list[bytes]:
    """The multiaddrs at which the daemon believes to be seen."""
    found = await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY), seconds)
    return list(found.identify.addrs)


async def connected_peers(p2p: Any, seconds: float) -> list[tuple[PeerId, list[bytes]]]:
    """Who is connected, and the multiaddrs of these connections."""
    found = await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS), seconds)
    return [(_name(one.id), list(one.addrs)) for one in found.peers]


@lru_cache(maxsize=NAMES_KEPT)  # the same peers are connected at each look, and base58 takes its time
def _name(raw: bytes) -> PeerId:
    return PeerId(PeerID(raw).to_base58())


async def addresses_of(p2p: Any, peer: PeerId, seconds: float) -> list[bytes]:
    """The multiaddrs at which a connected peer says to listen."""
    asked = p2pd_pb2.DHTRequest(type=p2pd_pb2.DHTRequest.FIND_PEER, peer=PeerID.from_base58(peer).to_bytes())
    found = await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.DHT, dht=asked), seconds)
    return list(found.dht.peer.addrs)


async def open_stream(p2p: Any, peer: PeerId, handler: str, seconds: float) -> ByteStream:
    """A stream to this handler of a peer."""
    wanted = p2pd_pb2.StreamOpenRequest(peer=PeerID.from_base58(peer).to_bytes(), proto=[handler])
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
    """Have this called for every stream that a remote opens under this name, also if the daemon did so itself."""
    if p2p._listen_task is None:
        p2p._start_listening()
    control = p2p._client.control
    control.handlers[name] = handler
    wanted = p2pd_pb2.StreamHandlerRequest(addr=control.listen_maddr.to_bytes(), proto=[name], balanced=False)
    await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=wanted), seconds)


async def close_protocol(p2p: Any, name: str, seconds: float) -> None:
    """Have the daemon refuse what it would itself do under this name: it forgets its own handler for another one's."""
    await add_handler(p2p, name, _refuse, seconds)
    await remove_handler(p2p, name, seconds)


async def _refuse(_: Any, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def disconnect(p2p: Any, peer: PeerId, seconds: float) -> None:
    """Close all connections to a peer."""
    wanted = p2pd_pb2.DisconnectRequest(peer=PeerID.from_base58(peer).to_bytes())
    await _ask(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=wanted), seconds)


async def remove_handler(p2p: Any, name: str, seconds: float) -> None:
    """Take no more streams under this name."""
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
    opened: ByteStream = await p2p._client.control.daemon_connector.open_connection()
    return opened


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Any) -> Any:
    await write_pbmsg(writer, request)
    response = p2pd_pb2.Response()
    await read_pbmsg_safe(reader, response)
    raise_if_failed(response)
    return response
