"""What a daemon does for strangers, asked of real ones on loopback: keys that no run knows, and no invite."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest
from hivemind.p2p import PeerID

from dht.addresses import PeerAddress
from dht.daemon import calls
from dht.daemon.kademlia import (
    FIND_NODE,
    PING,
    PROTOCOL,
    REQUEST_BYTES_MAX,
    STREAMS_PER_PEER_MAX,
    Message,
)
from dht.daemon.p2pd import DATA_BYTES_MAX, FILES_MAX, DaemonProcess
from dht.daemon.process import Daemon, DaemonConfig
from dht.errors import LocalError
from dht.identity import Identity
from tests.dht.conftest import ALICE, BOB

SECONDS_MAX = 20.0
PUT_VALUE, GET_VALUE, ADD_PROVIDER, GET_PROVIDERS = range(4)


@asynccontextmanager
async def daemon(folder: Path, identity: Identity, client_only: bool = False) -> AsyncIterator[Daemon]:
    """One on loopback, which nobody can call if it is a client only."""
    key = folder / identity.peer_id[-8:]
    if not key.exists():
        identity.save(key)
    running = await Daemon.start(DaemonConfig(key, client_only=client_only, runtime_parent=folder))
    try:
        yield running
    finally:
        await running.close()


async def ask(stranger: Daemon, host: Daemon, request: bytes) -> bytes:
    """What comes back on a stream of libp2p's Kademlia; nothing if it is closed."""
    reader, writer = await calls.open_stream(stranger.p2p, host.peer_id, PROTOCOL, SECONDS_MAX)
    try:
        writer.write(len(request).to_bytes(1, "big") + request if len(request) < 128 else varint(request))
        async with asyncio.timeout(SECONDS_MAX):
            length = await reader.read(1)
            return await reader.readexactly(length[0]) if length and length[0] < 128 else length
    finally:
        writer.transport.abort()


def varint(request: bytes) -> bytes:
    return bytes([len(request) & 0x7F | 0x80, len(request) >> 7]) + request


def test_the_daemon_keeps_nothing_for_strangers(runner: asyncio.Runner, short_folder: Path) -> None:
    """Provider records were kept without end; what only says who is near is answered."""

    async def scenario() -> None:
        async with daemon(short_folder, ALICE) as host, daemon(short_folder, BOB) as stranger:
            (at,) = await host.visible_addresses()
            await stranger.dial(at)
            key = PeerID.from_base58(stranger.peer_id).to_bytes()
            record = Message(type=ADD_PROVIDER, key=bytes(34)).SerializeToString()
            record += b"\x4a" + bytes([len(key) + 2]) + b"\x0a" + bytes([len(key)]) + key  # providerPeers = 9
            assert await ask(stranger, host, record) == b""
            for kind in (PUT_VALUE, GET_VALUE, GET_PROVIDERS):
                assert await ask(stranger, host, Message(type=kind, key=bytes(34)).SerializeToString()) == b""
            assert await ask(stranger, host, b"\xff" * 100) == b""
            assert (
                await ask(stranger, host, Message(type=PING, key=bytes(REQUEST_BYTES_MAX)).SerializeToString()) == b""
            )
            found = Message.FromString(await ask(stranger, host, Message(type=FIND_NODE, key=key).SerializeToString()))
            assert [PeerID(one.id).to_base58() for one in found.closer] == [host.peer_id]

    runner.run(scenario())


def test_one_stranger_holds_few_streams(runner: asyncio.Runner, short_folder: Path) -> None:
    async def scenario() -> None:
        async with daemon(short_folder, ALICE) as host, daemon(short_folder, BOB) as stranger:
            (at,) = await host.visible_addresses()
            await stranger.dial(at)
            streams = [
                await calls.open_stream(stranger.p2p, host.peer_id, PROTOCOL, SECONDS_MAX)
                for _ in range(STREAMS_PER_PEER_MAX + 3)
            ]
            closed = [asyncio.ensure_future(reader.read(1)) for reader, _ in streams]
            async with asyncio.timeout(SECONDS_MAX):
                for one in islice(asyncio.as_completed(closed), 3):
                    assert await one == b""
            assert sum(one.done() for one in closed) < len(closed)
            for _, writer in streams:
                writer.transport.abort()
            await asyncio.gather(*closed, return_exceptions=True)

    runner.run(scenario())


async def chosen(at: PeerAddress, protocol: bytes) -> bytes:
    """What a daemon answers whoever wants to speak this first."""
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        words = [b"/multistream/1.0.0\n", protocol + b"\n"]
        writer.write(b"".join(bytes([len(word)]) + word for word in words))
        async with asyncio.timeout(SECONDS_MAX):
            for _ in words:
                said = await reader.readexactly((await reader.readexactly(1))[0])
        return said.strip()
    finally:
        writer.transport.abort()


def test_a_daemon_speaks_tls_only_and_has_no_more_files_than_it_may(runner: asyncio.Runner, short_folder: Path) -> None:
    async def scenario() -> None:
        async with daemon(short_folder, ALICE) as host:
            (at,) = await host.visible_addresses()
            assert await chosen(at, b"/noise") == b"na"
            assert await chosen(at, b"/tls/1.0.0") == b"/tls/1.0.0"
            assert host.pid is not None
            files = resource.prlimit(host.pid, resource.RLIMIT_NOFILE)
            assert files == (min(FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2

    runner.run(scenario())


def test_the_kernel_ends_a_daemon_that_takes_too_much_memory(runner: asyncio.Runner, short_folder: Path) -> None:
    hog = short_folder / "hog"
    grow = f"kept = bytearray({DATA_BYTES_MAX + 1}); print('Peer ID: it has all of it', flush=True)"
    hog.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import select; select.select([], [], [], 1); {grow}"\n')
    hog.chmod(0o755)
    with pytest.raises(LocalError, match="MemoryError"):
        runner.run(DaemonProcess.start([], SECONDS_MAX, binary=hog))
