"""The libp2p daemon for real: what it refuses, how it dies, and how it comes back."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.proto.p2pd_pb2 import PersistentConnectionResponse

from dht.address_book import AddressBook
from dht.addresses import PeerAddress
from dht.daemon import calls, p2pd
from dht.daemon.config import arguments
from dht.daemon.p2pd import DATA_BYTES_MAX, FILES_MAX, DaemonProcess
from dht.daemon.process import Daemon, DaemonConfig
from dht.daemon.watchdog import WatchdogConfig, WatchdogCore, watch
from dht.door import Door
from dht.errors import LocalError, NetworkError, UsageError
from dht.identity import KeyVerifier
from dht.node import DhtNode
from dht.records import presence_key
from dht.validation import RecordRules
from tests.dht.conftest import ALICE, BOB, CAROL, DAVE, RUN_ID
from tests.freezing import freeze

RULES = RecordRules(RUN_ID, KeyVerifier())
END_SECONDS_MAX = 20.0
START_AND_WAIT = """
import asyncio, sys
from pathlib import Path
from dht.locks import RuntimeDirectory
from dht.daemon.p2pd import DaemonProcess

async def main():
    directory = RuntimeDirectory(Path(sys.argv[1]))
    arguments = [f"-listen=/unix{directory.path}/p2pd.sock", "-hostAddrs=/ip4/127.0.0.1/tcp/0"]
    print((await DaemonProcess.start(arguments, 30)).pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def wait_until_gone(pid: int) -> None:
    """Block on the kernel's notice that a process has ended; fails if it lives on."""
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], END_SECONDS_MAX)
        if not ended:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)
    assert ended


@pytest.fixture(scope="module")
def folder(short_folder: Path) -> Path:
    for name, identity in (("alice", ALICE), ("bob", BOB), ("carol", CAROL), ("stolen", BOB)):
        identity.save(short_folder / name)
    return short_folder


@pytest.fixture(scope="module")
def alice(folder: Path, runner: asyncio.Runner) -> Iterator[DhtNode]:
    config = DaemonConfig(folder / "alice", runtime_parent=folder)
    node = runner.run(DhtNode.start(config, RULES, time.time))
    yield node
    runner.run(node.close())


@pytest.fixture(scope="module")
def bob(alice: DhtNode, folder: Path, runner: asyncio.Runner) -> Iterator[DhtNode]:
    initial = runner.run(alice.daemon.visible_addresses())
    config = DaemonConfig(folder / "bob", initial_peers=initial, runtime_parent=folder)
    node = runner.run(DhtNode.start(config, RULES, time.time))
    yield node
    runner.run(node.close())


def test_the_daemon_has_our_identity_and_shows_where_it_listens(alice: DhtNode, runner: asyncio.Runner) -> None:
    (address,) = runner.run(alice.daemon.visible_addresses())
    assert address.peer_id == ALICE.peer_id == alice.daemon.p2p.peer_id.to_base58()
    assert address.host == "127.0.0.1"
    assert alice.daemon.alive


def test_a_taken_port_is_named(alice: DhtNode, folder: Path, runner: asyncio.Runner) -> None:
    (address,) = runner.run(alice.daemon.visible_addresses())
    with pytest.raises(UsageError, match=f"^port {address.port} is already in use"):
        runner.run(Daemon.start(DaemonConfig(folder / "carol", (f"/ip4/127.0.0.1/tcp/{address.port}",))))


def test_a_port_taken_between_our_check_and_the_start_is_named_too(runner: asyncio.Runner, folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^port {port} is already in use"):
            runner.run(DaemonProcess.start([f"-listen=/unix{folder}/x", f"-hostAddrs=/ip4/127.0.0.1/tcp/{port}"], 30))


def test_a_foreign_host_cannot_be_listened_on(folder: Path, runner: asyncio.Runner) -> None:
    for host, why in (
        ("/ip4/203.0.113.7", "no address 203.0.113.7 to listen on; name one of its own"),
        ("/dns4/example.org", "give an IP address"),
    ):
        with pytest.raises(UsageError, match=why):
            runner.run(Daemon.start(DaemonConfig(folder / "carol", (f"{host}/tcp/0",))))


def test_a_missing_or_foreign_binary_is_our_fault(folder: Path, runner: asyncio.Runner) -> None:
    for name, content in (("absent", None), ("foreign", b"\x7fELF of another machine")):
        if content is not None:
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o755)
        with pytest.raises(LocalError, match="does not run on this machine"):
            runner.run(DaemonProcess.start([], 30, binary=folder / name))


def test_a_daemon_keeps_lower_limits_of_its_machine() -> None:
    """Only root may raise them: as another user, a peer under `ulimit -d` could not start its daemon."""
    half = DATA_BYTES_MAX // 2
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            resource.prlimit(child.pid, resource.RLIMIT_DATA, (half, half))
            p2pd._bound(child.pid)
            assert resource.prlimit(child.pid, resource.RLIMIT_DATA) == (half, half)
            assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[1] <= FILES_MAX
        finally:
            child.kill()


def test_a_daemon_that_never_gets_ready_is_ended(folder: Path, runner: asyncio.Runner) -> None:
    silent = folder / "silent"
    silent.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    silent.chmod(0o755)
    with pytest.raises(LocalError, match=r"did not start within 0\.2 seconds"):
        runner.run(DaemonProcess.start([], 0.2, binary=silent))


def test_initial_peers_that_do_not_answer_are_the_networks_fault(folder: Path, runner: asyncio.Runner) -> None:
    nobody = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{ALICE.peer_id}")
    with pytest.raises(NetworkError, match=r"nobody answers at 127\.0\.0\.1:9; .*; this invite works on the host"):
        runner.run(Daemon.start(DaemonConfig(folder / "carol", initial_peers=(nobody,))))


def test_one_key_on_two_machines_is_noticed(bob: DhtNode, alice: DhtNode, folder: Path, runner: asyncio.Runner) -> None:
    initial = runner.run(alice.daemon.visible_addresses())
    with pytest.raises(UsageError, match="in use on another machine"):
        runner.run(Daemon.start(DaemonConfig(folder / "stolen", initial_peers=initial)))
    with pytest.raises(UsageError, match="another muster process here"):
        runner.run(Daemon.start(DaemonConfig(folder / "bob", initial_peers=initial)))
    assert bob.alive


def kill(node: DhtNode) -> None:
    os.kill(node.daemon.pid, signal.SIGKILL)


def deafen(node: DhtNode) -> None:
    node.daemon.p2p._client.control._read_task.cancel()


@pytest.mark.parametrize("break_it", [kill, deafen])
def test_a_peer_survives_the_death_of_its_daemon(
    alice: DhtNode, bob: DhtNode, runner: asyncio.Runner, break_it: Callable[[DhtNode], None]
) -> None:
    """hivemind notices nothing, the watchdog does, and the record store works again at the old address."""

    async def scenario() -> None:
        key = presence_key(RUN_ID)
        await alice.store.put(key, b"Alice is here", 60)
        before, rebuilt = await bob.daemon.visible_addresses(), asyncio.Event()

        async def note() -> None:
            rebuilt.set()

        bob.after_rebuild(note)
        break_it(bob)
        core = WatchdogCore(WatchdogConfig(), time.monotonic())
        watching = asyncio.create_task(watch(core, bob, time.monotonic, asyncio.sleep))
        await asyncio.wait_for(rebuilt.wait(), END_SECONDS_MAX)
        watching.cancel()
        assert b"Alice is here" in [r.payload for r in await bob.store.get(key)]
        await bob.store.put(key, break_it.__name__.encode(), 60)
        assert break_it.__name__.encode() in [r.payload for r in await alice.store.get(key)]
        assert await bob.daemon.visible_addresses() == before

    runner.run(scenario())


def test_a_dead_daemon_fails_at_once_and_a_restart_needs_no_initial_peer(
    alice: DhtNode, bob: DhtNode, folder: Path, runner: asyncio.Runner
) -> None:
    async def scenario() -> None:
        config = DaemonConfig(
            folder / "carol", initial_peers=await alice.daemon.visible_addresses(), runtime_parent=folder
        )
        carol = await DhtNode.start(config, RULES, time.time)
        try:
            carol.daemon.remember(await bob.daemon.visible_addresses())
            await carol.probe()
            os.kill(carol.daemon.pid, signal.SIGKILL)
            await carol.daemon._process._process.wait()
            assert not carol.alive
            for call in (carol.store.get(presence_key(RUN_ID)), carol.probe()):
                with pytest.raises(NetworkError, match="daemon has died"):
                    await call
            gone = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{ALICE.peer_id}")
            carol.daemon._config = replace(config, initial_peers=(gone,))
            await carol.rebuild()
            await carol.probe()
        finally:
            await carol.close()
            await carol.close()

    runner.run(scenario())


@asynccontextmanager
async def mute_host() -> AsyncIterator[tuple[PeerAddress, list[asyncio.StreamWriter]]]:
    """Where somebody takes calls and says nothing, and the calls it has taken."""
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield PeerAddress.parse(f"/ip4/127.0.0.1/tcp/{port}/p2p/{DAVE.peer_id}"), taken
    finally:
        server.close()
        for writer in taken:
            writer.transport.abort()
        await server.wait_closed()


def test_a_host_that_takes_calls_and_says_nothing_is_given_up(
    alice: DhtNode, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is the socket on which our daemon was asked: Python would warn of one that is left open."""
    monkeypatch.setattr("dht.daemon.caller.DIAL_SECONDS_MAX", 1.0)

    async def scenario() -> None:
        async with mute_host() as (address, taken):
            with pytest.raises(NetworkError, match="does not answer"):
                await alice.daemon.dial(address)
            assert len(taken) == 1, "it was called"

    runner.run(scenario())


def test_a_start_does_not_wait_for_hosts_that_take_calls_and_say_nothing(
    alice: DhtNode, folder: Path, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an old invite whose host has vanished: another one gets us in, and without one we are told soon."""
    monkeypatch.setattr("dht.daemon.caller.DIAL_SECONDS_MAX", 1.0)

    async def scenario() -> None:
        async with mute_host() as (mute, taken), asyncio.timeout(END_SECONDS_MAX):
            config = DaemonConfig(folder / "carol", initial_peers=(mute,), runtime_parent=folder)
            with pytest.raises(NetworkError, match="nobody answers at"):
                await DhtNode.start(config, RULES, time.time)
            assert taken, "it was called"
            both = replace(config, initial_peers=(mute, *await alice.daemon.visible_addresses()))
            carol = await DhtNode.start(both, RULES, time.time)
            try:
                await carol.probe()
            finally:
                await carol.close()

    runner.run(scenario())


def test_a_start_asks_nothing_more_of_who_is_silent_at_its_door(
    folder: Path, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is frozen while its daemon lives: people wait for one silence after the other."""

    over = asyncio.Event()

    async def silence(_: object, __: object, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.transport.abort()

    pings: list[object] = []

    async def ping(_: object, peer: object, **__: object) -> None:
        pings.append(peer)

    async def scenario() -> None:
        DAVE.save(folder / "frozen")
        door = Door()
        monkeypatch.setattr(door, "answer", silence)
        frozen = await Daemon.start(DaemonConfig(folder / "frozen", runtime_parent=folder, door=door))
        monkeypatch.setattr("dht.daemon.process.DIAL_SECONDS_MAX", 1.0)
        monkeypatch.setattr(DHTProtocol, "call_ping", ping)
        config = DaemonConfig(
            folder / "carol",
            initial_peers=await frozen.visible_addresses(),
            runtime_parent=folder,
            door=Door(lambda _: b"a pass"),
            fresh_key=True,
        )
        try:
            with pytest.raises(NetworkError, match="nobody answers at"):
                await DhtNode.start(config, RULES, time.time)
        finally:
            over.set()
            await frozen.close()

    runner.run(scenario())
    assert pings == []


async def wait_for_connections(server: Any) -> None:
    """`Server.wait_closed` as of Python 3.12.1; earlier it returns at once."""
    if server._waiters is not None:
        server._waiters.append(asyncio.get_running_loop().create_future())
        await server._waiters[-1]


async def open_stream(caller: Daemon, taker: Daemon) -> asyncio.StreamWriter:
    """A stream that is open at both ends, until either daemon has gone."""
    taken = asyncio.Event()

    async def read_on(_: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.set()
        await reader.read()
        writer.close()

    await calls.add_handler(taker.p2p, "stream", read_on, END_SECONDS_MAX)
    await caller.dial((await taker.visible_addresses())[0])
    _, writer = await calls.open_stream(caller.p2p, taker.peer_id, "stream", END_SECONDS_MAX)
    await taken.wait()
    return writer


def test_a_daemon_that_hangs_is_asked_in_vain_and_replaced(
    alice: DhtNode, folder: Path, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it holds a stream of another peer, which it does not close."""
    monkeypatch.setattr("asyncio.base_events.Server.wait_closed", wait_for_connections)
    monkeypatch.setattr("dht.daemon.process.CONTROL_SECONDS_MAX", 0.5)
    monkeypatch.setattr("dht.daemon.p2pd.STOP_SECONDS_MAX", 0.5)

    async def scenario() -> None:
        node = await DhtNode.start(DaemonConfig(folder / "carol", runtime_parent=folder), RULES, time.time)
        stream = await open_stream(alice.daemon, node.daemon)
        try:
            freeze(node.daemon.pid)
            assert node.alive
            assert await node.daemon.hosts() == {}
            for ask in (node.daemon.visible_addresses, node.probe):
                with pytest.raises(NetworkError):
                    await ask()
            monkeypatch.setattr("dht.daemon.process.CONTROL_SECONDS_MAX", 10.0)
            async with asyncio.timeout(END_SECONDS_MAX):
                await node.rebuild()
            await node.probe()
            freeze(node.daemon.pid)
        finally:
            stream.transport.abort()
            await node.close()

    runner.run(scenario())


def test_a_call_whose_caller_has_gone_is_forgotten(alice: DhtNode, bob: DhtNode, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def never_answer(request: bytes, caller: object) -> bytes:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return b""

        answering, asking = (node.daemon.p2p._client.control for node in (alice, bob))
        await answering.add_unary_handler("never", never_answer)
        call = asyncio.create_task(asking.call_unary_handler(alice.daemon.p2p.peer_id, "never", b""))
        await begun.wait()
        assert len(answering._handler_tasks) == 1
        call.cancel()
        await ended.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert answering._handler_tasks == {}
        assert all(one.done() for one in asking._pending_calls.values())
        await answering.remove_unary_handler("never")
        await alice.probe()  # an answered call leaves nothing either
        await bob.probe()
        assert answering._handler_tasks == {}

    runner.run(scenario())


def test_an_answer_to_a_call_that_was_given_up_just_now_ends_nothing(alice: DhtNode, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        control, reader = alice.daemon.p2p._client.control, asyncio.StreamReader()
        for say in ({"callUnaryResponse": {"response": b"late"}}, {"callUnaryResponse": {"error": b"late"}}, {}):
            call = uuid4()
            control._pending_calls[call] = asyncio.get_running_loop().create_future()
            control._pending_calls[call].cancel()
            answer = PersistentConnectionResponse(callId=call.bytes, **say).SerializeToString()
            reader.feed_data(bytes([len(answer)]) + answer)
        reader.feed_eof()
        await control._read_from_persistent_conn(reader)
        control._pending_calls.clear()

    runner.run(scenario())


def test_while_a_daemon_is_replaced_calls_fail_like_any_others(
    alice: DhtNode, folder: Path, runner: asyncio.Runner
) -> None:
    (address, *_) = runner.run(alice.daemon.visible_addresses())
    with pytest.raises(NetworkError):
        runner.run(Daemon(DaemonConfig(folder / "carol"), CAROL.peer_id).dial(address))


def test_a_peer_starts_anew_with_nobody_but_those_it_remembers(
    bob: DhtNode, folder: Path, runner: asyncio.Runner
) -> None:
    async def scenario() -> None:
        gone = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{ALICE.peer_id}")
        config = DaemonConfig(
            folder / "carol", initial_peers=(gone,), runtime_parent=folder, address_book=folder / "addresses"
        )
        with pytest.raises(NetworkError, match=r"nobody answers at 127\.0\.0\.1:9; .*; this invite works on the host"):
            await DhtNode.start(config, RULES, time.time)
        AddressBook(config.address_book).note(await bob.daemon.visible_addresses())
        carol = await DhtNode.start(config, RULES, time.time)
        try:
            await carol.probe()
        finally:
            await carol.close()

    runner.run(scenario())


def test_the_next_process_listens_where_others_look_for_it(folder: Path, runner: asyncio.Runner) -> None:
    """Both have been away since they last met, and neither was given anybody to call."""

    async def scenario() -> None:
        carols = DaemonConfig(
            folder / "carol", runtime_parent=folder, address_book=folder / "carols", port_file=folder / "port"
        )
        daves = replace(carols, identity_path=folder / "dave", address_book=folder / "daves", port_file=None)
        DAVE.save(folder / "dave")
        carol = await Daemon.start(carols)
        before = await carol.visible_addresses()
        await carol.close()
        AddressBook(folder / "daves").note(before)
        carol, dave = await DhtNode.start(carols, RULES, time.time), await DhtNode.start(daves, RULES, time.time)
        try:
            assert await carol.daemon.visible_addresses() == before  # type: ignore[attr-defined]
            await dave.store.put(presence_key(RUN_ID), b"Dave is here", 60)
            assert [record.payload for record in await carol.store.get(presence_key(RUN_ID))] == [b"Dave is here"]  # type: ignore[attr-defined]
        finally:
            await carol.close()
            await dave.close()

    runner.run(scenario())


@pytest.mark.parametrize("content", ["", "no number", "70000", "1 2", "taken"])
def test_a_place_that_is_gone_is_no_reason_not_to_start(folder: Path, runner: asyncio.Runner, content: str) -> None:
    async def scenario() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            (folder / "port").write_text(str(other.getsockname()[1]) if content == "taken" else content)
            daemon = await Daemon.start(
                DaemonConfig(folder / "carol", runtime_parent=folder, port_file=folder / "port")
            )
            (address,) = await daemon.visible_addresses()
            await daemon.close()
            assert (folder / "port").read_text() == f"{address.port}\n"
            assert address.port != other.getsockname()[1]

    runner.run(scenario())


def test_a_restart_comes_back_even_if_everybody_else_is_gone(folder: Path, runner: asyncio.Runner) -> None:
    """The first peer of a run may be alone and well; one that was given somebody to call knows that it is cut off."""

    async def scenario() -> None:
        gone = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{ALICE.peer_id}")
        node = await DhtNode.start(DaemonConfig(folder / "carol", runtime_parent=folder), RULES, time.time)
        try:
            node.daemon.remember([gone])
            await node.rebuild()
            await node.probe()
            node.daemon._config = replace(node.daemon._config, initial_peers=(gone,))
            with pytest.raises(NetworkError, match=r"nobody answers at 127\.0\.0\.1:9"):
                await node.rebuild()
            assert node.alive
        finally:
            await node.close()

    runner.run(scenario())


def test_a_rebuild_brings_back_sockets_that_vanished_with_their_folder(folder: Path, runner: asyncio.Runner) -> None:
    """As after a logout: systemd removes the user's runtime directory, and the peer goes on in the background."""

    async def scenario() -> None:
        session = folder / "session"
        session.mkdir()
        node = await DhtNode.start(DaemonConfig(folder / "carol", runtime_parent=session), RULES, time.time)
        try:
            places = await node.daemon.visible_addresses()
            shutil.rmtree(session)
            assert not node.alive
            await node.rebuild()
            assert node.alive
            assert await node.daemon.visible_addresses() == places
        finally:
            await node.close()

    runner.run(scenario())


def test_killing_our_process_kills_the_daemon_and_the_next_start_cleans_up(
    short_folder: Path, runner: asyncio.Runner
) -> None:
    """The daemon has no client here: with one, it may end by itself because the connection closed."""
    place = short_folder / "killed"
    CAROL.save(place / "carol")
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT, str(place)], stdout=subprocess.PIPE, text=True
    ) as ours:
        pid = int(ours.stdout.readline())
        os.kill(pid, 0)
        os.kill(ours.pid, signal.SIGKILL)
        wait_until_gone(pid)
    root = place / f"muster-{os.getuid()}"
    (left,) = (path for path in root.iterdir() if path.is_dir())
    assert (left / "p2pd.sock").is_socket()

    async def start_again() -> None:
        daemon = await Daemon.start(DaemonConfig(place / "carol", runtime_parent=place))
        assert not left.exists()
        await daemon.close()

    runner.run(start_again())
    assert [path.name for path in root.iterdir()] == ["lock"]


def test_nothing_costly_is_on_by_default(folder: Path) -> None:
    flags = arguments(DaemonConfig(folder / "alice"), folder)
    assert {"-natPortMap=0", "-relay=1", "-relayService=0", "-autonat=0"} <= set(flags)
    use = arguments(DaemonConfig(folder / "alice", client_only=True), folder)
    assert {"-relay=1", "-relayService=0", "-noListenAddrs=1", "-dhtClient=1"} <= set(use)


def test_an_announced_address_has_a_port(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be announced"):
        DaemonConfig(folder / "alice", announce=("/ip4/203.0.113.7/tcp/0",))
    with pytest.raises(UsageError, match="not an address"):
        DaemonConfig(folder / "alice", listen=("7331",))


def test_a_missing_key_is_the_users_affair(folder: Path, runner: asyncio.Runner) -> None:
    with pytest.raises(UsageError, match="no key file"):
        runner.run(Daemon.start(DaemonConfig(folder / "nowhere")))
