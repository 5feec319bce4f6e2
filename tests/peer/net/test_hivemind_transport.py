"""Faults that only the transport over libp2p can have: slow and silent remotes, floods of keys, dead processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from dht.daemon.calls import ByteStream
from dht.door import Door
from dht.errors import LocalError
from dht.identity import Identity, PeerId
from peer.net.hivemind_transport import HivemindTransport, handler_name
from peer.net.transport import Lane, TransportConfig, frame_prefix
from tests.checkout import ROOT
from tests.peer.net.test_transport_contract import WAIT_SECONDS, HivemindHarness, Inbox

CHILD = """
import asyncio, sys
from pathlib import Path
from tests.peer.net.test_transport_contract import Inbox, start_daemon
from peer.net.hivemind_transport import HivemindTransport

async def main():
    daemon = await start_daemon(Path(sys.argv[1]))
    address, = await daemon.get_visible_maddrs()
    inbox = await Inbox(HivemindTransport(daemon, bytes.fromhex(sys.argv[2]), lambda peer: [])).start()
    print(daemon._child.pid, address, flush=True)
    await inbox.frames_are(1)
    inbox.transport.post(inbox.frames[0][0], b"answer")
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory) -> Iterator[HivemindHarness]:
    harness = HivemindHarness(tmp_path_factory.mktemp("keys"))
    yield harness
    harness.end()


async def raw_stream(harness: HivemindHarness, place: int, to: Inbox, lane: Lane):
    """Open a stream from another daemon, past our own transport's rules."""
    daemon = await harness.daemon(place)
    target = (await harness.daemon(1)).peer_id
    await daemon._client.connect(target, (await (await harness.daemon(1))._client.identify())[1])
    _, reader, writer = await daemon.call_binary_stream_handler(target, handler_name(harness.run_id, lane))
    assert target.to_base58() == to.peer_id
    return reader, writer


async def close_writer(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    await asyncio.sleep(0)


async def read_until_cut(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


def test_a_frame_that_trickles_in_is_cut_off(harness: HivemindHarness) -> None:
    async def test() -> None:
        inbox = await harness.join(1, TransportConfig(frame_seconds=0.05, frame_bytes_per_second_min=1e9))
        reader, writer = await raw_stream(harness, 2, inbox, Lane.CONTROL)
        writer.write(frame_prefix(b"12345", b"", 0) + b"12345")
        writer.write(frame_prefix(b"12345", b"", 0) + b"1")
        await inbox.frames_are(1)
        assert await read_until_cut(reader) == b""
        assert inbox.headers == [b"12345"]
        await close_writer(writer)

    harness.run(test())


def test_unfinished_frames_are_shed_before_they_fill_the_memory(harness: HivemindHarness) -> None:
    async def test() -> None:
        unhurried = TransportConfig(frame_seconds=0.05, frame_bytes_per_second_min=1.0, unfinished_bytes_max=150_000)
        inbox = await harness.join(1, unhurried)
        small, large = [await raw_stream(harness, place, inbox, Lane.BULK) for place in (2, 3)]
        frame = frame_prefix(b"x", bytes(200_000), 200_000) + b"x" + bytes(200_000)
        small[1].write(frame[:70_000])
        large[1].write(frame[:120_000])
        assert await read_until_cut(large[0]) == b""
        small[1].write(frame[70_000:])
        await inbox.frames_are(1)
        assert inbox.frames[0][1:] == (b"x", bytes(200_000))
        for _, writer in (small, large):
            await close_writer(writer)

    harness.run(test())


def test_a_stream_of_who_has_shown_no_pass_is_cut_and_nothing_of_it_delivered(harness: HivemindHarness) -> None:
    async def test() -> None:
        friend = (await harness.daemon(2)).peer_id.to_base58()
        door = Door()
        door.policy = SimpleNamespace(knows=lambda peer: peer == friend)  # type: ignore[assignment]
        inbox = await harness.join(1, door=door)
        frame = frame_prefix(b"x", b"", 0) + b"x"
        stranger, friends = [await raw_stream(harness, place, inbox, Lane.CONTROL) for place in (3, 2)]
        stranger[1].write(frame)
        assert await read_until_cut(stranger[0]) == b""
        friends[1].write(frame)
        await inbox.frames_are(1)
        assert [sender for sender, *_ in inbox.frames] == [friend]
        for _, writer in (stranger, friends):
            await close_writer(writer)

    harness.run(test())


def test_an_idle_stream_is_left_alone(harness: HivemindHarness) -> None:
    async def test() -> None:
        inbox = await harness.join(1, TransportConfig(frame_seconds=0.01))
        _, writer = await raw_stream(harness, 2, inbox, Lane.CONTROL)
        frame = frame_prefix(b"x", b"", 0) + b"x"
        writer.write(frame)
        await inbox.frames_are(1)
        await asyncio.sleep(0.05)  # several sweeps
        writer.write(frame)
        await inbox.frames_are(2)
        await close_writer(writer)

    harness.run(test())


def test_a_remote_that_stops_reading_is_given_up(harness: HivemindHarness) -> None:
    async def test() -> None:
        taken = asyncio.Event()

        async def never_read(info, reader, writer) -> None:
            taken.set()
            await finished.wait()
            writer.transport.abort()

        finished = asyncio.Event()
        config = TransportConfig(frame_seconds=0.1, frame_bytes_per_second_min=1e9)
        a = await harness.join(1, config)
        b = await harness.daemon(2)
        target = PeerId(b.peer_id.to_base58())
        name = handler_name(harness.run_id, Lane.BULK)
        await b.add_binary_stream_handler(name, never_read)
        for _ in range(2):
            a.transport.post(target, b"huge", bytes(config.payload_bytes_max))
        await taken.wait()
        await a.peer_is_gone(target)
        traffic = a.transport.traffic_of(target)
        assert traffic.frames_dropped == 2
        assert traffic.bytes_sent < config.payload_bytes_max
        assert await a.transport.flush(0.0)
        finished.set()
        await b.remove_binary_stream_handler(name)

    harness.run(test())


@pytest.mark.parametrize("early", [False, True])
def test_a_remote_that_writes_on_our_stream_loses_it(
    harness: HivemindHarness, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """That holds also if its bytes are the first that we read on a new stream."""

    async def test() -> None:
        async def write_back(info, reader, writer) -> None:
            if not early:
                await reader.readexactly(1)
            writer.write(b"surprise")
            await reader.read()
            writer.transport.abort()

        async def dial_and_hear(peer: PeerId, lane: Lane) -> ByteStream:
            reader, writer = await dial(peer, lane)
            await reader.readexactly(1)
            return reader, writer

        a, b = await harness.join(1), await harness.daemon(2)
        dial = a.transport.dial  # type: ignore[attr-defined]
        if early:
            monkeypatch.setattr(a.transport, "dial", dial_and_hear)
        name = handler_name(harness.run_id, Lane.CONTROL)
        await b.add_binary_stream_handler(name, write_back)
        a.transport.post(PeerId(b.peer_id.to_base58()), b"hello")
        await a.peer_is_gone(PeerId(b.peer_id.to_base58()))
        await b.remove_binary_stream_handler(name)

    harness.run(test())


def test_a_second_stream_of_a_lane_replaces_the_first(harness: HivemindHarness) -> None:
    async def test() -> None:
        inbox = await harness.join(1)
        streams = []
        for count in (1, 2):
            streams.append(await raw_stream(harness, 2, inbox, Lane.CONTROL))
            streams[-1][1].write(frame_prefix(b"x", b"", 0) + b"x")
            await inbox.frames_are(count)
        assert await read_until_cut(streams[0][0]) == b""
        streams[1][1].write(frame_prefix(b"x", b"", 0) + b"x")
        await inbox.frames_are(3)
        assert inbox.gone == []
        for _, writer in streams:
            await close_writer(writer)

    harness.run(test())


def test_strangers_cannot_push_out_whom_we_work_with(harness: HivemindHarness) -> None:
    async def test() -> None:
        a = await harness.join(1, TransportConfig(peers_max=1))
        b, stranger = await harness.join(2), await harness.join(3)
        stranger.transport.post(a.peer_id, b"first come")
        await a.frames_are(1)
        a.transport.post(b.peer_id, b"we work with b")
        await b.frames_are(1)
        await stranger.peer_is_gone(a.peer_id)  # made room
        stranger.gone.clear()
        stranger.transport.post(a.peer_id, b"no room")
        await stranger.peer_is_gone(a.peer_id)
        b.transport.post(a.peer_id, b"answer")
        await a.frames_are(2)
        assert a.headers == [b"first come", b"answer"]
        assert b.gone == []
        assert a.transport.traffic_of(stranger.peer_id).bytes_received == 0
        assert a.transport.traffic.bytes_received == sum(8 + len(header) for header in a.headers)

    harness.run(test())


def test_keys_that_we_only_write_to_cannot_push_out_who_answered(harness: HivemindHarness) -> None:
    async def test() -> None:
        a, b = await harness.join(1, TransportConfig(peers_max=4)), await harness.join(2)
        a.transport.post(b.peer_id, b"question")
        await b.frames_are(1)
        b.transport.post(a.peer_id, b"answer")
        await a.frames_are(1)
        for name in strangers(8):
            a.transport.post(name, b"join")
        assert a.transport.traffic_of(b.peer_id).bytes_received > 0
        a.transport.post(b.peer_id, b"and another")
        await b.frames_are(2)
        assert b.gone == []

    harness.run(test())


def test_a_peer_is_not_pushed_out_while_something_is_on_its_way_to_it(harness: HivemindHarness) -> None:
    """It stays although it has sent nothing to us, and later peers have."""

    async def test() -> None:
        taken, finished = asyncio.Event(), asyncio.Event()

        async def never_read(info, reader, writer) -> None:
            await reader.readexactly(1)  # a remote may be called before we hear that the stream is there
            taken.set()
            await finished.wait()
            writer.transport.abort()

        a, b = await harness.join(1, TransportConfig(peers_max=2)), await harness.daemon(2)
        target, name = PeerId(b.peer_id.to_base58()), handler_name(harness.run_id, Lane.BULK)
        await b.add_binary_stream_handler(name, never_read)
        a.transport.post(target, b"a part", bytes(a.transport.config.payload_bytes_max))  # type: ignore[attr-defined]
        await taken.wait()
        talker = await harness.join(3)
        a.transport.post(talker.peer_id, b"question")
        await talker.frames_are(1)
        talker.transport.post(a.peer_id, b"answer")
        await a.frames_are(1)
        for stranger in strangers(4):
            a.transport.post(stranger, b"join")
        assert a.transport.traffic_of(target).bytes_sent > 0
        assert a.transport.traffic_of(target).frames_dropped == 0
        finished.set()
        await b.remove_binary_stream_handler(name)

    harness.run(test())


def test_a_talkative_peer_does_not_push_out_one_that_we_write_to(harness: HivemindHarness) -> None:
    async def test() -> None:
        a = await harness.join(1, TransportConfig(peers_max=2))
        talker, member = await harness.join(2), await harness.join(3)
        for number, inbox in enumerate((talker, member)):
            a.transport.post(inbox.peer_id, b"question")
            await inbox.frames_are(1)
            inbox.transport.post(a.peer_id, b"answer")
            await a.frames_are(number + 1)
        talker.transport.post(a.peer_id, b"and by the way")
        await a.frames_are(3)
        a.transport.post(*strangers(1), b"join")  # type: ignore[call-arg]
        assert a.transport.traffic_of(talker.peer_id).bytes_sent == 0
        assert a.transport.traffic_of(member.peer_id).bytes_sent > 0

    harness.run(test())


def strangers(count: int) -> list[PeerId]:
    """Return the ids of peers that cannot be dialled."""
    return [Identity(os.urandom(32)).peer_id for _ in range(count)]


def test_names_that_no_peer_has_are_gone(harness: HivemindHarness) -> None:
    async def test() -> None:
        a = await harness.join(1)
        for name in (Identity(os.urandom(32)).peer_id, PeerId("not base58: 0OIl"), PeerId("abc")):
            a.transport.post(name, b"hello")
            await a.peer_is_gone(name)

    harness.run(test())


def test_a_sender_that_hears_of_a_failed_dial_may_send_at_once(harness: HivemindHarness) -> None:
    async def test() -> None:
        daemon, nobody = await harness.daemon(1), Identity(os.urandom(32)).peer_id
        config = TransportConfig(backoff_seconds_min=0.001)
        transport = HivemindTransport(daemon, harness.run_id, lambda peer: [], config)
        twice = asyncio.Event()
        calls = []

        def on_gone(peer: PeerId) -> None:
            calls.append(peer)
            transport.post(nobody, b"again")
            if len(calls) == 2:
                twice.set()

        await transport.start(lambda *frame: None, on_gone)
        transport.post(nobody, b"hello")
        async with asyncio.timeout(WAIT_SECONDS):
            await twice.wait()
        await transport.close()

    harness.run(test())


def test_without_a_daemon_the_start_fails_in_a_sentence(tmp_path: Path) -> None:
    harness = HivemindHarness(tmp_path)

    async def test() -> None:
        daemon = await harness.daemon(1)
        transport = HivemindTransport(daemon, os.urandom(32), lambda peer: [])
        await harness.kill(1)
        with pytest.raises(LocalError, match="does not take our handlers"):
            await transport.start(lambda *frame: None, lambda peer: None)
        await transport.close()

    harness.run(test())
    harness.end()


def test_a_killed_process_is_gone_even_if_its_daemon_lives_on(harness: HivemindHarness, tmp_path: Path) -> None:
    identity = Identity(os.urandom(32))
    identity.save(tmp_path / "key")

    async def test() -> None:
        a = await harness.join(1)
        command = [sys.executable, "-c", CHILD, str(tmp_path / "key"), harness.run_id.hex()]
        child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        daemon_pid, address = (await child.stdout.readline()).split()
        try:
            harness.know(identity.peer_id, address.decode())
            a.transport.post(identity.peer_id, b"question")
            await a.frames_are(1)
            assert a.frames == [(identity.peer_id, b"answer", b"")]
            child.send_signal(signal.SIGKILL)
            await a.peer_is_gone(identity.peer_id)
            assert a.gone == [identity.peer_id]
            a.gone.clear()
            a.transport.post(identity.peer_id, b"is the ghost there")
            await a.peer_is_gone(identity.peer_id)
        finally:
            with suppress(ProcessLookupError):
                os.kill(int(daemon_pid), signal.SIGKILL)
            if child.returncode is None:
                child.kill()
            await child.wait()

    harness.run(test())
