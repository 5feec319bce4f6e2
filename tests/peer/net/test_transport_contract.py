"""The contract of every transport, checked on the in-memory one (in virtual time) and on real libp2p daemons."""

import asyncio
import gc
import os
import random
import tracemalloc
import warnings
from array import array
from collections import deque
from collections.abc import Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pytest
from hivemind.p2p import P2P
from hypothesis import assume, given
from hypothesis import strategies as st

from dht.door import Door
from dht.errors import PeerError
from dht.identity import Identity, PeerId
from peer.net.hivemind_transport import HivemindTransport
from peer.net.transport import (
    PREFIX_BYTES,
    Frame,
    FrameReader,
    Lane,
    QueueBudget,
    Transport,
    TransportConfig,
    frame_prefix,
    lane_of,
)
from tests.peer.memory_transport import MemoryNetwork
from tests.peer.virtual_loop import VirtualLoop

WAIT_SECONDS = 20.0


class Inbox:
    """Records what a transport delivers and lets a test wait for it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.frames: list[tuple[PeerId, bytes, bytes]] = []
        self.gone: list[PeerId] = []
        self._news = asyncio.Event()

    @property
    def peer_id(self) -> PeerId:
        return self.transport.peer_id

    @property
    def headers(self) -> list[bytes]:
        return [header for _, header, _ in self.frames]

    async def start(self) -> "Inbox":
        await self.transport.start(self._on_frame, self._on_gone)
        return self

    async def frames_are(self, count: int) -> None:
        await self._until(lambda: len(self.frames) >= count)

    async def frame_is(self, header: bytes) -> None:
        await self._until(lambda: header in self.headers)

    async def peer_is_gone(self, peer: PeerId) -> None:
        await self._until(lambda: peer in self.gone)

    async def _until(self, condition) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def _on_frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        self.frames.append((sender, header, payload))
        self._news.set()

    def _on_gone(self, peer: PeerId) -> None:
        self.gone.append(peer)
        self._news.set()


async def start_daemon(identity_path: Path) -> P2P:
    """Start a libp2p daemon on loopback that contacts nobody of its own accord."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # hivemind finds its binary by importlib.resources.path
        return await P2P.create(
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            identity_path=str(identity_path),
            check_if_identity_free=False,
            use_relay=False,
            nat_port_map=False,
            auto_nat=False,
            startup_timeout=60,
        )


class Harness(Protocol):
    def run(self, test: Coroutine[Any, Any, None]) -> None: ...

    async def join(self, place: int, config: TransportConfig | None = None) -> Inbox: ...

    async def kill(self, place: int) -> None: ...


class MemoryHarness:
    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._open: list[Inbox] = []

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self._network = MemoryNetwork(seed=0)

        async def whole() -> None:
            await test
            for inbox in self._open:
                await inbox.transport.close()
            self._open.clear()

        self._runner.run(whole())

    async def join(self, place: int, config: TransportConfig | None = None) -> Inbox:
        peer_id = Identity(bytes([place]) * 32).peer_id
        self._open.append(await Inbox(self._network.transport(peer_id, config)).start())
        return self._open[-1]

    async def kill(self, place: int) -> None:
        self._network.kill(Identity(bytes([place]) * 32).peer_id)

    def end(self) -> None:
        self._runner.close()


class HivemindHarness:
    """Real daemons, one per place, kept for all tests; each test has its own run id."""

    def __init__(self, directory) -> None:
        self._runner = asyncio.Runner()
        self._directory = directory
        self._daemons: dict[int, P2P] = {}
        self._addresses: dict[PeerId, list[str]] = {}
        self._open: list[Inbox] = []
        self._run_id = b""

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self._run_id = os.urandom(32)

        async def whole() -> None:
            await test
            for inbox in self._open:
                await inbox.transport.close()
            self._open.clear()

        self._runner.run(whole())

    async def daemon(self, place: int) -> P2P:
        if place not in self._daemons:
            path = self._directory / f"{place}-{len(self._addresses)}.key"
            Identity(os.urandom(32)).save(path)
            daemon = await start_daemon(path)
            self._daemons[place] = daemon
            addresses = [str(address) for address in await daemon.get_visible_maddrs()]
            self._addresses[PeerId(daemon.peer_id.to_base58())] = ["nonsense", "", *addresses]
        return self._daemons[place]

    def know(self, peer: PeerId, address: str) -> None:
        """Tell everyone the address of a peer that runs elsewhere."""
        self._addresses[peer] = [address]

    def addresses_of(self, peer: PeerId) -> list[str]:
        """Return the addresses at which everyone finds a peer."""
        return self._addresses.get(peer, [])

    @property
    def run_id(self) -> bytes:
        return self._run_id

    async def join(self, place: int, config: TransportConfig | None = None, door: Door | None = None) -> Inbox:
        daemon = await self.daemon(place)
        transport = HivemindTransport(daemon, self._run_id, self.addresses_of, config, door=door)
        self._open.append(await Inbox(transport).start())
        return self._open[-1]

    async def kill(self, place: int) -> None:
        daemon = self._daemons.pop(place)
        daemon._child.kill()
        await daemon.shutdown()

    def end(self) -> None:
        async def shut_down() -> None:
            for daemon in self._daemons.values():
                await daemon.shutdown()

        self._runner.run(shut_down())
        self._runner.close()


@pytest.fixture(scope="module", params=["memory", "hivemind"])
def harness(request, tmp_path_factory) -> Iterator[Harness]:
    harness = MemoryHarness() if request.param == "memory" else HivemindHarness(tmp_path_factory.mktemp("keys"))
    yield harness
    harness.end()


def test_frames_go_both_ways_and_name_their_sender(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1), await harness.join(2)
        a.transport.post(b.peer_id, b"question", b"x" * 10)
        await b.frames_are(1)
        b.transport.post(a.peer_id, b"answer")
        await a.frames_are(1)
        assert b.frames == [(a.peer_id, b"question", b"x" * 10)]
        assert a.frames == [(b.peer_id, b"answer", b"")]
        assert a.gone == b.gone == []

    harness.run(test())


def test_each_lane_keeps_its_order(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1), await harness.join(2)
        bulk_payload = bytes(200_000)
        for index in range(300):
            a.transport.post(b.peer_id, b"control %d" % index)
            if index % 50 == 0:
                a.transport.post(b.peer_id, b"bulk %d" % index, bulk_payload)
        await b.frames_are(306)
        assert [header for header in b.headers if header.startswith(b"c")] == [b"control %d" % i for i in range(300)]
        assert [header for header in b.headers if header.startswith(b"b")] == [
            b"bulk %d" % i for i in range(0, 300, 50)
        ]

    harness.run(test())


@pytest.mark.parametrize("payload_bytes", [65_536, 65_537, 262_144, 8 << 20])
def test_payloads_arrive_whole(harness: Harness, payload_bytes: int) -> None:
    async def test() -> None:
        a, b = await harness.join(1), await harness.join(2)
        payload = random.Random(payload_bytes).randbytes(payload_bytes)
        header = payload[: 1 << 20]
        a.transport.post(b.peer_id, header, payload)
        await b.frames_are(1)
        assert b.frames == [(a.peer_id, header, payload)]

    harness.run(test())


def test_a_view_over_wide_elements_counts_in_bytes(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1), await harness.join(2)
        for count in (4, 50_000):
            numbers = array("f", range(count))
            a.transport.post(b.peer_id, b"tensor", memoryview(numbers))
            await b.frames_are(1)
            assert b.frames.pop() == (a.peer_id, b"tensor", numbers.tobytes())

    harness.run(test())


def test_traffic_is_counted_alike_on_both_sides(harness: Harness) -> None:
    async def test() -> None:
        a, b, c = await harness.join(1), await harness.join(2), await harness.join(3)
        for index in range(500):
            a.transport.post(b.peer_id, b"h%03d" % index, b"p" * 100)
        a.transport.post(c.peer_id, b"other", bytes(100_000))
        assert await a.transport.flush(WAIT_SECONDS)
        await b.frames_are(500)
        await c.frames_are(1)
        to_b, to_c = 500 * (PREFIX_BYTES + 4 + 100), PREFIX_BYTES + 5 + 100_000
        assert a.transport.traffic_of(b.peer_id).bytes_sent == b.transport.traffic.bytes_received == to_b
        assert a.transport.traffic_of(c.peer_id).bytes_sent == c.transport.traffic_of(a.peer_id).bytes_received == to_c
        assert a.transport.traffic.bytes_sent == to_b + to_c
        assert a.transport.traffic.frames_dropped == 0
        assert b.transport.traffic_of(c.peer_id).bytes_received == 0

    harness.run(test())


def test_a_full_queue_drops_the_newest_and_recovers(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1, TransportConfig(queue_frames_max=8)), await harness.join(2)
        for index in range(20):
            a.transport.post(b.peer_id, b"%d" % index)
        a.transport.post(b.peer_id, b"other lane", bytes(70_000))
        traffic = a.transport.traffic_of(b.peer_id)
        assert traffic.frames_dropped == 12
        assert traffic.congested
        assert a.transport.traffic.congested
        await b.frames_are(9)
        assert await a.transport.flush(WAIT_SECONDS)
        assert not a.transport.traffic.congested
        a.transport.post(b.peer_id, b"again")
        await b.frames_are(10)
        assert set(b.headers) == {b"%d" % index for index in range(8)} | {b"other lane", b"again"}

    harness.run(test())


def test_a_full_queue_is_counted_in_bytes_too(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1, TransportConfig(queue_bytes_max=250_000)), await harness.join(2)
        for index in range(4):
            a.transport.post(b.peer_id, b"%d" % index, bytes(100_000))
        assert a.transport.traffic.frames_dropped == 2
        await b.frames_are(2)
        assert b.headers == [b"0", b"1"]

    harness.run(test())


def test_a_killed_peer_is_gone_and_does_not_disturb_others(harness: Harness) -> None:
    async def test() -> None:
        a, b, doomed = await harness.join(1), await harness.join(2), await harness.join(4)
        a.transport.post(doomed.peer_id, b"hello")
        await doomed.frames_are(1)
        await harness.kill(4)
        await a.peer_is_gone(doomed.peer_id)
        assert a.gone == [doomed.peer_id]
        a.gone.clear()
        a.transport.post(doomed.peer_id, b"are you there")
        a.transport.post(b.peer_id, b"still here")
        await b.frames_are(1)
        await a.peer_is_gone(doomed.peer_id)
        assert b.gone == []

    harness.run(test())


def test_a_peer_that_only_listens_hears_that_its_sender_is_gone(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1), await harness.join(2)
        a.transport.post(b.peer_id, b"bye")
        await b.frames_are(1)
        await a.transport.close()
        await b.peer_is_gone(a.peer_id)
        assert b.gone == [a.peer_id]

    harness.run(test())


def test_a_peer_that_comes_back_is_reached_again(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1, TransportConfig(backoff_seconds_min=0.01)), await harness.join(2)
        a.transport.post(b.peer_id, b"one")
        await b.frames_are(1)
        await b.transport.close()
        await a.peer_is_gone(b.peer_id)
        b = await harness.join(2)
        a.transport.post(b.peer_id, b"two")
        await b.frames_are(1)
        assert b.frames == [(a.peer_id, b"two", b"")]

    harness.run(test())


def test_a_peer_that_sends_more_than_we_allow_is_cut_off_alone(harness: Harness) -> None:
    async def test() -> None:
        strict = await harness.join(1, TransportConfig(payload_bytes_max=1000))
        honest, greedy = await harness.join(2), await harness.join(3)
        honest.transport.post(strict.peer_id, b"before")
        await strict.frames_are(1)
        greedy.transport.post(strict.peer_id, b"too much", bytes(1001))
        await greedy.peer_is_gone(strict.peer_id)
        await strict.peer_is_gone(greedy.peer_id)
        greedy.gone.clear()
        greedy.transport.post(strict.peer_id, b"refused")
        await greedy.peer_is_gone(strict.peer_id)
        honest.transport.post(strict.peer_id, b"after", bytes(1000))
        await strict.frames_are(2)
        assert strict.headers == [b"before", b"after"]
        assert honest.gone == []

    harness.run(test())


def test_frames_outside_the_limits_are_our_own_mistake(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1, TransportConfig(payload_bytes_max=100)), await harness.join(2)
        for header, payload in ((b"", b""), (bytes((1 << 20) + 1), b""), (b"x", bytes(101))):
            with pytest.raises(ValueError, match="not within the limits"):
                a.transport.post(b.peer_id, header, payload)
        with pytest.raises(ValueError, match="itself"):
            a.transport.post(a.peer_id, b"x")

    harness.run(test())


def test_close_is_complete_and_final(harness: Harness) -> None:
    async def test() -> None:
        a, b = await harness.join(1), await harness.join(2)
        before = asyncio.all_tasks()
        a.transport.post(b.peer_id, b"hello", bytes(100_000))
        b.transport.post(a.peer_id, b"hello")
        await a.frames_are(1)
        await b.frames_are(1)
        unknown = Identity(os.urandom(32)).peer_id
        a.transport.post(unknown, b"never sent")  # a dial is under way while we close
        for inbox in (a, b):
            await inbox.transport.close()
            await inbox.transport.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before
        a.transport.post(b.peer_id, b"too late")
        assert await a.transport.flush(WAIT_SECONDS)
        assert a.transport.traffic.bytes_sent >= 100_000
        gc.collect()  # a stream left open would warn here, and warnings are errors

    harness.run(test())


def test_a_queue_budget_lets_one_large_frame_pass_alone() -> None:
    budget = QueueBudget(TransportConfig(queue_bytes_max=100, queue_frames_max=10))
    assert budget.take(500)
    assert not budget.take(1)
    assert budget.congested
    budget.give_back(500)
    assert not budget.congested
    assert budget.take(60)
    assert not budget.take(41)
    assert budget.take(40)


def test_lanes_are_chosen_by_payload() -> None:
    assert lane_of(bytes(65_536)) is Lane.CONTROL
    assert lane_of(memoryview(array("d", range(8193)))) is Lane.BULK


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload_bytes_max": 1 << 32},
        {"queue_frames_max": 0},
        {"frame_seconds": 0.0},
        {"backoff_seconds_min": 9.0},
    ],
)
def test_a_config_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        TransportConfig(**wrong)


FRAMES = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=200)), max_size=12)


@given(frames=FRAMES, cuts=st.lists(st.integers(0, 3000), max_size=40))
def test_a_reader_finds_the_same_frames_however_they_are_cut(frames: list, cuts: list[int]) -> None:
    stream = b"".join(frame_prefix(header, payload, 200) + header + payload for header, payload in frames)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameReader(payload_bytes_max=200)
    found = [frame for start, end in pairwise(edges) for frame in reader.feed(bytearray(stream[start:end]))]
    assert found == frames
    assert reader.unfinished_bytes == 0


@given(
    frames=FRAMES,
    header_bytes=st.integers(0, 2**32 - 1),
    payload_bytes=st.integers(0, 2**32 - 1),
    step=st.integers(1, 300),
)
def test_a_reader_refuses_lengths_over_the_limit(
    frames: list, header_bytes: int, payload_bytes: int, step: int
) -> None:
    assume(header_bytes == 0 or header_bytes > 1 << 20 or payload_bytes > 200)
    good = b"".join(frame_prefix(header, payload, 200) + header + payload for header, payload in frames)
    stream = good + header_bytes.to_bytes(4, "big") + payload_bytes.to_bytes(4, "big")
    reader = FrameReader(payload_bytes_max=200)
    pieces = (stream[start : start + step] for start in range(0, len(stream), step))
    with pytest.raises(PeerError, match="not within the limits"):
        deque(map(reader.feed, pieces), maxlen=0)


def test_a_reader_stores_nothing_on_the_strength_of_an_announcement() -> None:
    reader = FrameReader(payload_bytes_max=2**32 - 1)
    tracemalloc.start()
    try:
        assert reader.feed(b"\0\0\0\1" + b"\xff" * 4 + b"H" + bytes(1000)) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert reader.unfinished_bytes == PREFIX_BYTES + 1 + 2**32 - 1


def test_a_reader_alone_reports_what_is_unfinished() -> None:
    reader = FrameReader(payload_bytes_max=100)
    assert reader.feed(b"\0\0\0") == []
    assert reader.unfinished_bytes == PREFIX_BYTES
    assert reader.feed(b"\1\0\0\0\4H") == []
    assert reader.unfinished_bytes == PREFIX_BYTES + 5
    assert reader.held_bytes == PREFIX_BYTES + 1
    assert reader.feed(b"data") == [Frame(b"H", b"data")]
    assert reader.unfinished_bytes == 0
