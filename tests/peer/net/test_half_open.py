"""Half-open connections over real libp2p daemons: nothing waits for ever on them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dht.daemon.calls import ByteStream
from dht.errors import LocalError, NetworkError
from dht.identity import Identity, PeerId
from peer.net.frames import ManifestAnswer, ManifestAsk, StateAsk, StatePiece, decode_header, encode_header
from peer.net.hivemind_transport import HivemindTransport, handler_name
from peer.net.transport import Lane, Transport, TransportConfig, frame_prefix
from peer.numerics.outer_optimizer import OuterState
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.sync.bootstrap import fetch_manifest
from peer.sync.state_client import StateClient
from peer.sync.state_server import StateServer
from peer.sync.upload_scheduler import ASKS_PER_ASKER_MAX
from tests.freezing import frozen
from tests.peer.homely import manifest
from tests.peer.net.test_hivemind_transport import close_writer, raw_stream, read_until_cut
from tests.peer.net.test_transport_contract import WAIT_SECONDS, HivemindHarness, Inbox
from tests.peer.sync.test_state_client import CONFIG, DIGEST, STEP, certificate_of, state_of

GIVES_UP_CALLS = TransportConfig(connect_timeout_seconds=0.5)
GIVES_UP_FRAMES = TransportConfig(frame_seconds=1.0, frame_bytes_per_second_min=1e9)


@pytest.fixture(scope="module")
def harness(tmp_path_factory) -> Iterator[HivemindHarness]:
    harness = HivemindHarness(tmp_path_factory.mktemp("keys"))
    yield harness
    harness.end()


class States:
    """State transfer at one end of a transport."""

    def __init__(self, inbox: Inbox, state: OuterState | None = None) -> None:
        self.anchors = Anchors(layouts_of(CONFIG), genesis_states(CONFIG))
        if state is not None:
            self.anchors.install(0, DIGEST, state, STEP)
        self.asked: list[PeerId] = []
        self._inbox = inbox
        self.transfer = StateClient(self.anchors, self._post)
        self.server = StateServer(self.anchors, self._post)
        inbox.transport._on_frame = self._hear  # type: ignore[attr-defined]
        inbox.transport._on_gone = self._gone  # type: ignore[attr-defined]

    def _post(self, to: PeerId, message: StateAsk | StatePiece, payload: bytes | memoryview) -> None:
        self._inbox.transport.post(to, encode_header(message), payload)

    def _hear(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        message = decode_header(header)
        if isinstance(message, StateAsk):
            self.asked.append(sender)
            self.server.serve(sender, message)
        if isinstance(message, StatePiece):
            self.transfer.receive(sender, message, payload)
        self._inbox._on_frame(sender, header, payload)

    def _gone(self, peer: PeerId) -> None:
        self.server.gone(peer)
        self.transfer.gone(peer)
        self._inbox._on_gone(peer)


def bytes_have_come(transport: Transport, count: int) -> asyncio.Event:
    """Return an event that is set once a transport has read so many more bytes; for 0, once it has a new stream."""
    come = asyncio.Event()
    gate = transport.throttle.download  # type: ignore[attr-defined]
    left, received = [count], gate.received

    def receive(size_bytes: int, now: float) -> None:
        received(size_bytes, now)
        left[0] -= size_bytes
        if left[0] <= 0:
            come.set()

    gate.received = receive
    return come


async def mute_stream(harness: HivemindHarness, place: int, to: Inbox, lane: Lane) -> ByteStream:
    """Open a silent stream, and wait until the other end has taken it, which the opener is not told."""
    taken = bytes_have_come(to.transport, 0)
    stream = await raw_stream(harness, place, to, lane)
    async with asyncio.timeout(WAIT_SECONDS):
        await taken.wait()
    return stream


async def swallow(harness: HivemindHarness, place: int) -> PeerId:
    """Start a peer whose daemon takes every stream and frame, and which never sends anything."""

    async def handle(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(1 << 16):
                pass
        finally:
            writer.transport.abort()

    daemon = await harness.daemon(place)
    for lane in Lane:
        await daemon.add_binary_stream_handler(handler_name(harness.run_id, lane), handle)
    return PeerId(daemon.peer_id.to_base58())


def test_a_host_that_takes_calls_and_says_nothing_is_gone(harness: HivemindHarness) -> None:
    async def test() -> None:
        taken: list[asyncio.StreamWriter] = []
        called = asyncio.Event()

        def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken.append(writer)
            called.set()

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        peer = Identity(os.urandom(32)).peer_id
        harness.know(peer, f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}")
        a = await harness.join(1, GIVES_UP_CALLS)
        a.transport.post(peer, b"anybody?", bytes(1 << 20))
        await a.peer_is_gone(peer)
        async with asyncio.timeout(WAIT_SECONDS):
            await called.wait()
        assert a.transport.traffic_of(peer).frames_dropped == 1
        assert await a.transport.flush(0.0)
        server.close()
        for writer in taken:
            writer.transport.abort()
        await server.wait_closed()

    harness.run(test())


def test_a_vanished_peer_is_gone_when_nothing_leaves_and_is_found_again(harness: HivemindHarness) -> None:
    """Frames that fit into libp2p's own buffers still leave us; libp2p gives the connection up after 40 s."""

    async def test() -> None:
        a, b = await harness.join(1, GIVES_UP_FRAMES), await harness.join(2)
        b.transport.post(a.peer_id, b"hello")  # a has not opened a stream of its own
        await a.frames_are(1)
        with frozen((await harness.daemon(2))._child.pid):
            a.transport.post(b.peer_id, b"are you there?", bytes(4 << 20))
            await a.peer_is_gone(b.peer_id)
        a.transport.post(b.peer_id, b"and now?")
        await b.frame_is(b"and now?")

    harness.run(test())


def test_a_peer_that_vanishes_within_a_frame_is_cut_off_and_heard_again(harness: HivemindHarness) -> None:
    """Half of the frame is here and the rest never comes, while the connection stays."""

    async def test() -> None:
        a, b = await harness.join(1, GIVES_UP_FRAMES), await harness.join(3)
        _, writer = await raw_stream(harness, 2, a, Lane.BULK)
        whole = frame_prefix(b"x", b"", 0) + b"x"
        half = frame_prefix(b"y", bytes(60_000), 60_000) + b"y" + bytes(30_000)
        everything_is_here = bytes_have_come(a.transport, len(whole) + len(half))
        writer.write(whole + half)
        await a.frames_are(1)  # so the stream is known
        vanished = a.frames[0][0]
        async with asyncio.timeout(WAIT_SECONDS):
            await everything_is_here.wait()
            with frozen((await harness.daemon(2))._child.pid):
                stream = a.transport._remotes[vanished].incoming[Lane.BULK]  # type: ignore[attr-defined]
                assert stream.held_bytes > 0
                b.transport.post(a.peer_id, b"and me?")
                await a.frame_is(b"and me?")
                await stream.lost
        _, later = await raw_stream(harness, 2, a, Lane.BULK)
        later.write(whole)
        await a.frames_are(3)
        assert a.headers == [b"x", b"and me?", b"x"]
        remote = a.transport._remotes[vanished]  # type: ignore[attr-defined]
        assert [one.held_bytes for one in remote.incoming.values()] == [0]
        for one in (writer, later):
            await close_writer(one)

    harness.run(test())


def test_a_stream_on_which_nothing_is_ever_said_makes_room_for_whom_we_work_with(harness: HivemindHarness) -> None:
    async def test() -> None:
        a, b = await harness.join(1, TransportConfig(frame_seconds=0.05, peers_max=1)), await harness.join(3)
        reader, writer = await mute_stream(harness, 2, a, Lane.CONTROL)
        b.transport.post(a.peer_id, b"there is no room for both")
        await a.frames_are(1)
        a.transport.post(b.peer_id, b"and I work with you")
        await b.frames_are(1)
        assert await read_until_cut(reader) == b""
        await close_writer(writer)

    harness.run(test())


def test_a_peer_with_mute_streams_ends_at_once(harness: HivemindHarness) -> None:
    async def test() -> None:
        daemon = await harness.daemon(1)
        a = await Inbox(HivemindTransport(daemon, harness.run_id, lambda peer: [], GIVES_UP_CALLS)).start()
        streams = [await mute_stream(harness, 2, a, lane) for lane in Lane]
        streams[0][1].write(frame_prefix(b"x", b"", 0) + b"x")
        await a.frames_are(1)
        async with asyncio.timeout(WAIT_SECONDS):
            await a.transport.close()
        assert await read_until_cut(streams[0][0]) == b""
        for _, writer in streams:
            await close_writer(writer)

    harness.run(test())


def test_a_holder_that_never_answers_is_left_for_another(
    harness: HivemindHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.sync.source.STALL_SECONDS", 0.3)
    monkeypatch.setattr("peer.sync.step_client.STALL_SECONDS", 0.3)
    state = state_of(1)
    certificate = certificate_of(state)

    async def test() -> None:
        mute = await swallow(harness, 2)
        newcomer, holder = States(await harness.join(1)), States(await harness.join(3), state)
        states = newcomer.transfer
        assert await states.steps.fetch(certificate, mute, len(STEP)) is None
        with pytest.raises(NetworkError, match="no holder gave version 3"):
            await states.fetch(certificate, [mute])
        assert not states._downloads.is_awaited(0)
        assert states.steps._arrivals == {}
        monkeypatch.undo()  # the answering peer may take its time
        monkeypatch.setattr("peer.sync.source.STALL_SECONDS", 3.0)
        got = await states.fetch(certificate, [mute, holder._inbox.peer_id])
        assert torch.equal(got.anchor, state.anchor)
        for lane in Lane:
            await (await harness.daemon(2)).remove_binary_stream_handler(handler_name(harness.run_id, lane))

    harness.run(test())


def test_a_newcomer_learns_of_the_run_from_others_than_the_mute(
    harness: HivemindHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        run = manifest()
        mute, holder, daemon = await swallow(harness, 2), await harness.join(3), await harness.daemon(1)

        def tell(sender: PeerId, header: bytes, _: bytes) -> None:
            if isinstance(decode_header(header), ManifestAsk):
                holder.transport.post(sender, encode_header(ManifestAnswer(manifest=run.to_wire())))

        holder.transport._on_frame = tell  # type: ignore[attr-defined]
        async with asyncio.timeout(WAIT_SECONDS):
            newcomer = HivemindTransport(daemon, harness.run_id, harness.addresses_of, GIVES_UP_CALLS)
            assert await fetch_manifest(newcomer, run.run_id, {mute, holder.peer_id}) == run
            await newcomer.close()
            monkeypatch.setattr("peer.sync.bootstrap.MANIFEST_SECONDS_MAX", 1.0)
            newcomer = HivemindTransport(daemon, harness.run_id, harness.addresses_of, GIVES_UP_CALLS)
            with pytest.raises(NetworkError, match="nobody named in the invite answers"):
                await fetch_manifest(newcomer, run.run_id, {mute})
            assert newcomer.traffic_of(mute).bytes_sent > 0, "it was asked"
            await newcomer.close()
        for lane in Lane:
            await (await harness.daemon(2)).remove_binary_stream_handler(handler_name(harness.run_id, lane))

    harness.run(test())


@pytest.mark.slow
def test_a_fetch_from_a_holder_that_freezes_ends_and_goes_on_when_it_is_back(
    harness: HivemindHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(1)

    async def test() -> None:
        newcomer, holder = States(await harness.join(1)), States(await harness.join(2), state)
        fetch = partial(newcomer.transfer.fetch, certificate_of(state), [holder._inbox.peer_id])
        assert await newcomer.transfer.steps.fetch(certificate_of(state), holder._inbox.peer_id, len(STEP)) == STEP
        monkeypatch.setattr("peer.sync.source.STALL_SECONDS", 0.3)
        with (
            frozen((await harness.daemon(2))._child.pid),
            pytest.raises(NetworkError, match="no holder gave version 3"),
        ):
            await fetch()
        monkeypatch.undo()
        assert torch.equal((await fetch()).momentum, state.momentum)

    harness.run(test())


def test_a_donor_gives_others_what_an_asker_that_vanished_does_not_take(harness: HivemindHarness) -> None:
    state = state_of(1)

    async def test() -> None:
        stop = asyncio.Event()

        async def never_read(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await stop.wait()
            writer.transport.abort()

        inbox = await harness.join(1, GIVES_UP_FRAMES)
        donor, other = States(inbox, state), States(await harness.join(3))
        daemon = await harness.daemon(2)
        vanished = PeerId(daemon.peer_id.to_base58())
        await daemon.add_binary_stream_handler(handler_name(harness.run_id, Lane.BULK), never_read)
        _, writer = await raw_stream(harness, 2, inbox, Lane.CONTROL)
        # more than libp2p and the sockets take when nobody reads, and one after the other as they are answered
        for round_number in range(8):
            for piece in range(ASKS_PER_ASKER_MAX):
                header = encode_header(StateAsk(fragment=0, certificate=DIGEST, piece=piece))
                writer.write(frame_prefix(header, b"", 0) + header)
            await inbox.frames_are((round_number + 1) * ASKS_PER_ASKER_MAX)
        got = await other.transfer.fetch(certificate_of(state), [donor._inbox.peer_id])
        assert torch.equal(got.anchor, state.anchor)
        await inbox.peer_is_gone(vanished)
        assert vanished not in donor.server._uploads._lines
        assert not inbox.transport.traffic_of(vanished).congested
        assert await inbox.transport.flush(WAIT_SECONDS)
        stop.set()
        await close_writer(writer)
        await daemon.remove_binary_stream_handler(handler_name(harness.run_id, Lane.BULK))

    harness.run(test())


def test_a_daemon_of_ours_that_hangs_keeps_nobody(tmp_path: Path) -> None:
    """The watchdog replaces it. Until then calls to it fail, and the end of this peer must not wait for it."""
    harness = HivemindHarness(tmp_path)

    async def test() -> None:
        daemon = await harness.daemon(1)
        running = await Inbox(HivemindTransport(daemon, os.urandom(32), lambda peer: [], GIVES_UP_CALLS)).start()
        with frozen(daemon._child.pid):
            async with asyncio.timeout(WAIT_SECONDS):
                late = HivemindTransport(daemon, os.urandom(32), lambda peer: [], GIVES_UP_CALLS)
                with pytest.raises(LocalError, match="does not take our handlers"):
                    await late.start(lambda *frame: None, lambda peer: None)
                running.transport.post(Identity(os.urandom(32)).peer_id, b"hello")
                await running._until(lambda: bool(running.gone))
                await running.transport.close()
                await late.close()

    harness.run(test())
    harness.end()
