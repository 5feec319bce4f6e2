"""Two peers that nobody can call, and a third that passes on what they say: with real daemons, and with none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.p2p import PeerID
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from dht.daemon import calls, relay
from dht.daemon.calls import DAEMON_ERRORS, ByteStream
from dht.daemon.messages import framed, read_message
from dht.daemon.process import Daemon
from dht.daemon.relay import (
    ASK_SECONDS_MAX,
    CIRCUITS_EACH_MAX,
    CIRCUITS_OF_PAIR_MAX,
    HOP,
    HOP_CONNECT,
    IDLE_BYTES,
    IDLE_SECONDS,
    MESSAGE_BYTES_MAX,
    Message,
    Relay,
    RelayLimits,
    Status,
    called,
    calling,
    takes,
    told,
)
from dht.identity import Identity, PeerId
from tests.dht.conftest import ALICE, BOB, CAROL, DAVE
from tests.dht.daemon.test_strangers import daemon
from tests.peer.virtual_loop import run_virtual

SECONDS_MAX = 20.0
ECHO = "muster/test/echo"
MEGABYTES = 3


def asking(target: str) -> bytes:
    message = Message(type=HOP_CONNECT)
    message.peer.id = PeerID.from_base58(target).to_bytes()
    return bytes(message.SerializeToString())


# -- what is said


@given(st.binary(min_size=32, max_size=32))
def test_whom_a_caller_names_is_called(seed: bytes) -> None:
    peer = Identity(seed).peer_id
    assert called(asking(peer)) == peer
    assert PeerID(Message.FromString(calling(peer)).peer.id).to_base58() == peer


@given(st.binary(max_size=200))
def test_nonsense_is_an_answer_like_another(message: bytes) -> None:
    assert isinstance(called(message), str | Status)
    assert takes(message) in (True, False)


def test_answers_are_those_of_libp2p() -> None:
    """As the daemon in hivemind's wheel says and takes them."""
    assert told(Status.OK) == bytes.fromhex("0408022864")
    assert takes(bytes.fromhex("08012064"))
    assert not takes(bytes.fromhex("080120cb01"))
    assert called(b"\x08\x00") is Status.RESERVATION_REFUSED
    assert called(b"\x08\x02") is Status.UNEXPECTED_MESSAGE
    assert called(b"\x08\x01") is called(b"\xff") is Status.MALFORMED_MESSAGE


# -- between daemons


@asynccontextmanager
async def street(folder: Path, admits: Callable[[PeerId], bool]) -> AsyncIterator[tuple[Daemon, Daemon, Daemon]]:
    """A host that relays for these, and two that have called it and that nobody can call."""
    async with (
        daemon(folder, ALICE) as host,
        daemon(folder, BOB, client_only=True) as one,
        daemon(folder, CAROL, client_only=True) as other,
    ):
        host.relay_limits.admits = admits
        (at,) = await host.visible_addresses()
        await one.dial(at)
        await other.dial(at)
        yield host, one, other


async def call(one: Daemon, host: Daemon, other: PeerId) -> None:
    through = Multiaddr(f"/p2p/{host.peer_id}/p2p-circuit").to_bytes()
    await calls.connect(one.p2p, other, [through], SECONDS_MAX)


async def left(one: Daemon, other: Daemon) -> None:
    """Until one is not connected to the other any more."""
    async with asyncio.timeout(SECONDS_MAX):
        while other.peer_id in await one.hosts():  # noqa: ASYNC110 - the daemon tells nobody
            await asyncio.sleep(0.02)


async def echo(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(1 << 16):
            writer.write(some)
            await writer.drain()
    writer.transport.abort()


async def send(writer: asyncio.StreamWriter, sent: bytes) -> None:
    writer.write(sent)
    await writer.drain()


def test_two_that_nobody_can_call_talk_through_a_third(runner: asyncio.Runner, short_folder: Path) -> None:
    async def scenario() -> None:
        async with street(short_folder, lambda _: True) as (host, one, other):
            await call(one, host, other.peer_id)
            assert (await one.hosts())[other.peer_id] == (await other.hosts())[one.peer_id] == ""
            sent = random.Random(7).randbytes(MEGABYTES << 20)
            for caller, taker in ((one, other), (other, one)):  # over one connection
                await calls.add_handler(taker.p2p, ECHO, echo, SECONDS_MAX)
                reader, writer = await calls.open_stream(caller.p2p, taker.peer_id, ECHO, SECONDS_MAX)
                async with asyncio.timeout(SECONDS_MAX):
                    back, _ = await asyncio.gather(reader.readexactly(len(sent)), send(writer, sent))
                assert back == sent
                writer.transport.abort()
            assert host.relay_limits.carried_bytes > 4 * len(sent)
            host.relay_limits.admits = lambda _: False  # the owner's day is over: what comes next is the last
            with suppress(*DAEMON_ERRORS):
                _, writer = await calls.open_stream(one.p2p, other.peer_id, ECHO, SECONDS_MAX)
                writer.transport.abort()
            await left(one, other)
            await left(other, one)

    runner.run(scenario())


def test_one_that_is_gone_is_gone_for_the_other(runner: asyncio.Runner, short_folder: Path) -> None:
    async def scenario() -> None:
        async with street(short_folder, lambda _: True) as (host, one, other):
            await call(one, host, other.peer_id)
            await other.close()
            await left(one, other)
            assert one.peer_id in await host.hosts()

    runner.run(scenario())


@pytest.mark.parametrize("stranger", [BOB.peer_id, CAROL.peer_id])
def test_nothing_is_passed_on_from_a_stranger_or_to_one(
    runner: asyncio.Runner, short_folder: Path, stranger: PeerId
) -> None:
    async def scenario() -> None:
        async with street(short_folder, lambda peer: peer != stranger) as (host, one, other):
            with pytest.raises(DAEMON_ERRORS, match="PERMISSION_DENIED"):
                await call(one, host, other.peer_id)
            assert other.peer_id not in await one.hosts()

    runner.run(scenario())


def test_a_daemon_relays_for_nobody_before_it_is_told_for_whom(runner: asyncio.Runner, short_folder: Path) -> None:
    async def scenario() -> None:
        async with street(short_folder, RelayLimits().admits) as (host, one, other):
            with pytest.raises(DAEMON_ERRORS, match="PERMISSION_DENIED"):
                await call(one, host, other.peer_id)

    runner.run(scenario())


def test_other_requests_to_a_relay_are_refused_in_libp2ps_words(
    runner: asyncio.Runner, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with street(short_folder, lambda _: True) as (host, one, other):

            async def answer(request: bytes) -> int:
                reader, writer = await calls.open_stream(one.p2p, host.peer_id, HOP, SECONDS_MAX)
                try:
                    writer.write(request)
                    async with asyncio.timeout(SECONDS_MAX):
                        return int(Message.FromString(await read_message(reader, MESSAGE_BYTES_MAX)).hopped)
                finally:
                    writer.transport.abort()

            assert await answer(framed(b"\x08\x00")) == Status.RESERVATION_REFUSED
            assert await answer(framed(b"\xff")) == Status.MALFORMED_MESSAGE
            for nobody in (DAVE.peer_id, one.peer_id, host.peer_id):
                assert await answer(framed(asking(nobody))) == Status.NO_RESERVATION
            monkeypatch.setattr(relay, "CIRCUITS_EACH_MAX", 0)
            assert await answer(framed(asking(other.peer_id))) == Status.RESOURCE_LIMIT_EXCEEDED

    runner.run(scenario())


# -- without daemons


class Pipe:
    """Two ends of a stream; `near` and `far` are what either side holds."""

    def __init__(self) -> None:
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        self.near, self.far = (here, _Writer(there, here)), (there, _Writer(here, there))


class _Writer:
    def __init__(self, to: asyncio.StreamReader, back: asyncio.StreamReader) -> None:
        self._ends = (to, back)
        self.transport = self

    def write(self, some: bytes) -> None:
        if not self._ends[0].at_eof():
            self._ends[0].feed_data(some)

    def set_write_buffer_limits(self, high: int) -> None: ...

    async def drain(self) -> None:
        """Whatever comes is taken."""

    def abort(self) -> None:
        for one in self._ends:
            one.feed_eof()


class Exchange:
    """A relay whose peers are all connected, and who take every call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hosts: dict[PeerId, str] | None = None) -> None:
        self.hosts = hosts
        self.relay_limits = RelayLimits()
        self.relay_limits.admits = lambda _: True
        self.relay = Relay(None, self._hosts, self.relay_limits, lambda: asyncio.get_running_loop().time())
        self.taken: list[Any] = []
        self.serving: list[asyncio.Task[None]] = []
        monkeypatch.setattr(calls, "open_stream", self._open_stream)

    async def _hosts(self) -> dict[PeerId, str]:
        crowd = {PeerId(peer): "192.0.2.1" for peer in map(name, range(100))}
        return crowd if self.hosts is None else self.hosts

    async def _open_stream(self, *_: object) -> ByteStream:
        pipe = Pipe()
        pipe.far[1].write(framed(bytes.fromhex("08012064")))
        self.taken.append(pipe.far)
        stream: Any = pipe.near
        return stream

    def call(self, caller: PeerId) -> Any:
        """The caller's end of a stream on which it has said nothing yet."""
        pipe, info = Pipe(), SimpleNamespace(peer_id=PeerID.from_base58(caller))
        ours: Any = pipe.near
        self.serving.append(asyncio.create_task(self.relay.serve(info, *ours)))
        return pipe.far

    async def ask(self, caller: PeerId, target: PeerId) -> tuple[Any, int]:
        """The caller's end, and what it is told."""
        reader, writer = end = self.call(caller)
        writer.write(framed(asking(target)))
        return end, int(Message.FromString(await read_message(reader, MESSAGE_BYTES_MAX)).hopped)

    async def end(self) -> None:
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)


NAMES = [Identity(bytes([number]) * 32).peer_id for number in range(100)]


def name(number: int) -> PeerId:
    return NAMES[number]


def test_one_that_is_refused_has_said_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that we close with something unread on it is reset, and what we answered is lost on the way."""

    async def scenario() -> None:
        place = Exchange(monkeypatch)
        place.relay_limits.admits = lambda _: False
        reader, writer = place.call(name(0))
        await asyncio.sleep(1.0)
        assert not place.serving[0].done()
        writer.write(framed(asking(name(1))))
        told = Message.FromString(await read_message(reader, MESSAGE_BYTES_MAX))
        assert told.hopped == Status.PERMISSION_DENIED
        place.call(name(0))  # says nothing at all
        await asyncio.sleep(ASK_SECONDS_MAX + 1.0)
        assert all(serving.done() for serving in place.serving)

    run_virtual(scenario())


def test_a_peer_has_so_many_circuits_and_has_room_again_when_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        place = Exchange(monkeypatch)
        ends = [await place.ask(name(number), name(0)) for number in range(1, CIRCUITS_EACH_MAX + 1)]
        assert [status for _, status in ends] == [Status.OK] * CIRCUITS_EACH_MAX
        assert (await place.ask(name(50), name(0)))[1] == Status.RESOURCE_LIMIT_EXCEEDED
        assert [(await place.ask(name(50), name(51)))[1] for _ in range(3)] == [
            *[Status.OK] * CIRCUITS_OF_PAIR_MAX,
            Status.RESOURCE_LIMIT_EXCEEDED,  # one alone leaves a peer room for others
        ]
        ends[0][0][1].abort()
        await place.serving[0]
        assert (await place.ask(name(52), name(0)))[1] == Status.OK
        await place.end()

    run_virtual(scenario())


def test_all_together_have_so_many_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(relay, "CIRCUITS_MAX", 3)
        place = Exchange(monkeypatch)
        told = [(await place.ask(name(2 * pair), name(2 * pair + 1)))[1] for pair in range(4)]
        assert told == [Status.OK] * 3 + [Status.RESOURCE_LIMIT_EXCEEDED]
        await place.end()

    run_virtual(scenario())


def test_a_peer_that_asks_all_the_time_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        place, told = Exchange(monkeypatch), []
        for _ in range(40):
            end, status = await place.ask(name(0), name(1))
            end[1].abort()
            await place.serving[-1]
            told.append(status)
        assert told.count(Status.OK) == relay.ASKED_AT_ONCE
        await asyncio.sleep(1.0)
        assert (await place.ask(name(0), name(1)))[1] == Status.OK
        await place.end()

    run_virtual(scenario())


@pytest.mark.parametrize("relayed", [0, 1])
def test_no_relay_behind_a_relay(monkeypatch: pytest.MonkeyPatch, relayed: int) -> None:
    """Nobody knows from where such a peer comes, and two relays could lead to each other."""

    async def scenario() -> None:
        hosts = {name(0): "192.0.2.1", name(1): "192.0.2.2"} | {name(relayed): ""}
        place = Exchange(monkeypatch, hosts)
        assert (await place.ask(name(0), name(1)))[1] == Status.NO_RESERVATION
        await place.end()

    run_virtual(scenario())


def test_a_circuit_ends_when_little_was_said_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        place = Exchange(monkeypatch)
        (end, status), loop = await place.ask(name(0), name(1)), asyncio.get_running_loop()
        assert status == Status.OK
        for _ in range(5):  # much to say, and then only a look whether the other one is there
            await asyncio.sleep(IDLE_SECONDS - 1.0)
            end[1].write(bytes(IDLE_BYTES))
        quiet_at = loop.time()
        while not place.serving[0].done():
            end[1].write(bytes(34))
            await asyncio.sleep(30.0)
        assert IDLE_SECONDS <= loop.time() - quiet_at <= 2 * IDLE_SECONDS + 30.0
        assert place.taken[0][0].at_eof() or await place.taken[0][0].read(-1)

    run_virtual(scenario())


def test_every_byte_waits_for_the_owners_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        place, waited = Exchange(monkeypatch), list[int]()
        gate = asyncio.Event()

        async def wait(size_bytes: int) -> None:
            waited.append(size_bytes)
            await gate.wait()

        place.relay_limits.wait = wait
        end, _ = await place.ask(name(0), name(1))
        reader, _ = place.taken[0]
        assert takes(bytes.fromhex("08012064"))
        await read_message(reader, MESSAGE_BYTES_MAX)  # that it is called
        end[1].write(b"hello")
        await asyncio.sleep(5.0)
        assert (waited, place.relay_limits.carried_bytes) == ([5], 0)
        gate.set()
        assert await reader.readexactly(5) == b"hello"
        assert place.relay_limits.carried_bytes == 5
        await place.end()

    run_virtual(scenario())
