"""Attacks by messages alone, over real libp2p: other peers are served, and nothing is left afterwards."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError
from hivemind.proto import dht_pb2

from coordinator.wire.messages import NeedNote
from dht.addresses import PeerAddress
from dht.daemon.config import DaemonConfig
from dht.guard import CALLS_AT_ONCE, REQUESTS
from dht.identity import Identity, PeerId
from dht.records import presence_key
from peer.attacks.messages import MESSAGE_ATTACKS, RECORD_HANDLERS
from peer.attacks.peer import OpenLine
from peer.net import hivemind_streams
from peer.net.frames import encode_header
from peer.net.hivemind_streams import IncomingStream
from peer.net.network import Network
from peer.net.transport import HEADER_BYTES_MAX, Lane, TransportConfig
from tests.peer.net.test_transport_contract import WAIT_SECONDS, HivemindHarness

RUN_ID = bytes(range(32))
PAYLOAD_BYTES_MAX = 100_000
GOES = {"replay": 8, "oversized": 10, "slow_loris": 3, "garbage": 8}  # so that each variant had its turn
FRAME = encode_header(NeedNote(what="part", group=bytes(32), partition=0, turn=0))


class Heard:
    """The number of frames from each peer, and the newest header of each."""

    def __init__(self) -> None:
        self.frames = Counter[PeerId]()
        self.newest: dict[PeerId, bytes] = {}
        self._news = asyncio.Event()

    def frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        self.frames[sender] += 1
        self.newest[sender] = header
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self._news.clear()
                await self._news.wait()


class Place:
    """Two honest peers, and as many others as a test wants; all of them know the first one's address."""

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        self._folder = folder
        self._numbers = count()
        self.runner = runner
        self.met: tuple[PeerAddress, ...] = ()

    async def start(self) -> None:
        self.target, self.at_target = await self.join(), Heard()
        self.met = await self.target.dht.daemon.visible_addresses()
        self.honest, self.at_honest = await self.join(), Heard()
        self.target.expect_payloads(PAYLOAD_BYTES_MAX)
        usual = self.target._transport.config
        self.target._transport.config = replace(usual, frame_seconds=0.2, frame_bytes_per_second_min=1e7)
        await self.target.start(self.at_target.frame, lambda peer: None)
        await self.honest.start(self.at_honest.frame, lambda peer: None)

    async def join(self) -> Network:
        path = self._folder / f"{next(self._numbers)}.key"
        Identity.load_or_create(path)
        config = DaemonConfig(path, initial_peers=self.met, runtime_parent=self._folder)
        return await Network.open(config, RUN_ID, lambda peer: [str(one) for one in self.met if one.peer_id == peer])

    async def talk(self) -> bytes:
        """Let the honest peer ask and get an answer; returns its question."""
        target, honest = self.target.peer_id, self.honest.peer_id
        header = b"question %d" % next(self._numbers)
        self.honest.post(target, header)
        await self.at_target.until(lambda: self.at_target.newest.get(honest) == header)
        self.target.post(honest, header)
        await self.at_honest.until(lambda: self.at_honest.newest.get(target) == header)
        return header

    async def meet(self) -> None:
        """Let the honest peer also store a record that the target finds. Call it rarely, as honest peers do."""
        header, honest = await self.talk(), self.honest.peer_id
        await self.honest.dht.store.put(presence_key(RUN_ID), header, 60)
        found = {record.sender: record.payload for record in await self.target.dht.store.get(presence_key(RUN_ID))}
        assert found[honest] == header

    def streams_of(self, peer: PeerId) -> list[IncomingStream]:
        remote = self.target._transport._remotes.get(peer)
        return [] if remote is None else list(remote.incoming.values())


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:  # pytest's own is too long for sockets
        place = Place(Path(folder), runner)
        runner.run(place.start())
        yield place
        runner.run(place.honest.close())
        runner.run(place.target.close())


@pytest.mark.parametrize("name", MESSAGE_ATTACKS)
def test_others_are_served_and_nothing_is_left_behind(place: Place, name: str) -> None:
    async def test() -> None:
        hostile = await place.join()
        attack = MESSAGE_ATTACKS[name](OpenLine(hostile), [place.target.peer_id], random.Random(1))
        attack.tap.note(FRAME, b"")
        goes = count_goes(attack)
        attacking = asyncio.create_task(attack.run())
        try:
            held_bytes_max = 0
            met = -1
            while goes[0] < GOES[name]:
                await (place.talk() if goes[0] == met else place.meet())
                met = goes[0]
                streams = place.streams_of(hostile.peer_id)
                assert len(streams) <= len(Lane)
                held_bytes_max = max(held_bytes_max, sum(stream.held_bytes for stream in streams))
                assert not attacking.done()
            assert held_bytes_max <= len(Lane) * (HEADER_BYTES_MAX + PAYLOAD_BYTES_MAX)
            streams = place.streams_of(hostile.peer_id)
        finally:
            attacking.cancel()
            await asyncio.wait([attacking])
            await hostile.close()
        calls = list(place.target.dht.daemon.p2p._client.control._handler_tasks.values())
        ended = [*(stream.lost for stream in streams), *calls]
        if ended:
            _, waiting = await asyncio.wait(ended, timeout=WAIT_SECONDS)
            assert not waiting
        assert place.streams_of(hostile.peer_id) == []
        await place.meet()

    place.runner.run(test())


def count_goes(attack: object) -> list[int]:
    """Return a list with the number of attacks from now on, whether or not they succeed."""
    goes, attack_once = [0], attack.attack  # type: ignore[attr-defined]

    async def counted(peer: PeerId) -> None:
        goes[0] += 1
        await attack_once(peer)

    attack.attack = counted  # type: ignore[attr-defined]
    return goes


def test_calls_that_no_honest_peer_makes_to_the_record_store_are_refused(place: Place) -> None:
    async def test() -> None:
        hostile = await place.join()
        target, call = place.target.peer_id, calls_of(hostile)
        keys = [bytes(20)] * 100
        many = dht_pb2.FindRequest(keys=keys, peer=dht_pb2.NodeInfo())
        with pytest.raises(P2PHandlerError, match="over the limit"):
            await call(target, "DHTProtocol.rpc_find", many.SerializeToString())
        chosen = DHTID.generate(source="wherever I like")
        request = dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=chosen.to_bytes()))
        with pytest.raises(P2PHandlerError, match="does not follow"):
            await call(target, "DHTProtocol.rpc_ping", request.SerializeToString())
        assert chosen not in place.target.dht.store._protocol.routing_table
        empty = dht_pb2.PingRequest().SerializeToString()
        pings = [call(target, "DHTProtocol.rpc_ping", empty) for _ in range(2 * CALLS_AT_ONCE)]
        answers = await asyncio.gather(*pings, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, P2PHandlerError)]
        assert refused
        assert all("too many calls" in str(answer) for answer in refused)
        await place.meet()
        await hostile.close()

    place.runner.run(test())


def calls_of(network: Network) -> Callable[[PeerId, str, bytes], Awaitable[bytes]]:
    async def call(peer: PeerId, handler: str, request: bytes) -> bytes:
        answer: bytes = await network.dht.daemon.p2p._client.call_unary_handler(
            PeerID.from_base58(peer), handler, request
        )
        return answer

    return call


def test_the_guard_stands_before_every_handler(place: Place) -> None:
    """If hivemind gets further handlers one day, they need a limit too."""
    handlers = place.target.dht.daemon.p2p._client.control.unary_handlers
    assert set(handlers) == set(REQUESTS) == set(RECORD_HANDLERS)
    assert {handler.__name__ for handler in handlers.values()} == {"guarded"}


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HivemindHarness]:
    harness = HivemindHarness(tmp_path_factory.mktemp("keys"))
    yield harness
    harness.end()


def test_one_whose_frames_take_long_waits_for_the_others(
    harness: HivemindHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        busy = [0.0]
        a, b, flood = await harness.join(1), await harness.join(2), await harness.join(3)
        monkeypatch.setattr(hivemind_streams, "thread_time", lambda: busy[0])
        deliver = a._on_frame

        def slow(sender: PeerId, header: bytes, payload: bytes) -> None:
            busy[0] += 0.01 * (sender == flood.peer_id)
            deliver(sender, header, payload)

        a.transport._on_frame = slow  # type: ignore[attr-defined]
        b.transport.post(a.peer_id, b"hello")  # the stream is there
        await a.frames_are(1)
        for number in range(500):
            flood.transport.post(a.peer_id, b"%d" % number)
        await a.frames_are(2)
        b.transport.post(a.peer_id, b"me, too")
        await a.frame_is(b"me, too")
        floods = [header for sender, header, _ in a.frames if sender == flood.peer_id]
        assert len(floods) < 250
        await a.frames_are(len(a.frames) + 5)
        floods = [header for sender, header, _ in a.frames if sender == flood.peer_id]
        assert floods == [b"%d" % number for number in range(len(floods))], "what waits keeps its order"

    harness.run(test())


def test_a_peer_that_opens_streams_without_end_is_not_listened_to(harness: HivemindHarness) -> None:
    async def test() -> None:
        config = TransportConfig(streams_at_once=4, streams_per_second=0.001)
        a, b, restless = await harness.join(1, config), await harness.join(2), await harness.join(3)
        opened = [await restless.transport.dial(a.peer_id, Lane.CONTROL) for _ in range(6)]  # type: ignore[attr-defined]
        for reader, writer in opened:
            async with asyncio.timeout(WAIT_SECONDS):
                assert await reader.read() == b"", "the last ones were refused, and took the others along"
            writer.transport.abort()
        assert a.transport._remotes[restless.peer_id].incoming == {}  # type: ignore[attr-defined]
        b.transport.post(a.peer_id, b"hello")
        await a.frames_are(1)
        assert a.headers == [b"hello"]

    harness.run(test())


def test_no_longer_payload_is_taken_than_the_run_has(harness: HivemindHarness) -> None:
    async def test() -> None:
        a, b, large = await harness.join(1), await harness.join(2), await harness.join(3)
        for sender in (b, large):
            sender.transport.post(a.peer_id, b"before", bytes(200_000))
        await a.frames_are(2)
        a.transport.adjust(TransportConfig(payload_bytes_max=100_000))  # type: ignore[attr-defined]
        large.transport.post(a.peer_id, b"after", bytes(100_001))
        await large.peer_is_gone(a.peer_id)
        b.transport.post(a.peer_id, b"after", bytes(100_000))
        await a.frames_are(3)
        assert a.frames[-1] == (b.peer_id, b"after", bytes(100_000))

    harness.run(test())
