"""Probing whether another peer can be reached from here: only its own address is called, and not often."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest

from dht.identity import Identity, PeerId
from dht.meeting import answers
from peer.net.frames import ProbeAnswer, ProbeAsk, decode_header, encode_header
from peer.net.probe import (
    ANSWERS_AT_ONCE_MAX,
    ANSWERS_PER_SECOND_MAX,
    CALL_INTERVAL_SECONDS,
    CALLS_MAX,
    ProbeResponder,
)

ASKER = Identity(bytes([1]) * 32).peer_id
OTHERS = [Identity(bytes([number]) * 32).peer_id for number in range(2, 12)]


class Stand:
    """A probe desk to which all questions come from one given host."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.asked_for: list[PeerId] = []
        self.said: list[tuple[PeerId, ProbeAnswer]] = []
        self.news = asyncio.Event()
        self.desk = ProbeResponder(self._host_of, self._post)

    async def _host_of(self, peer: PeerId) -> str:
        self.asked_for.append(peer)
        return self.host

    def _post(self, peer: PeerId, answer: ProbeAnswer, payload: bytes) -> None:
        assert payload == b""
        self.said.append((peer, answer))
        self.news.set()

    async def answer(self) -> ProbeAnswer:
        async with asyncio.timeout(20):
            await self.news.wait()
        return self.said[-1][1]


async def listening() -> tuple[asyncio.Server, int]:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def test_an_open_port_is_called_and_a_closed_one_is_told() -> None:
    async def course() -> None:
        server, port = await listening()
        stand = Stand()
        stand.desk.ask(ASKER, ProbeAsk(ticket=7, port=port), 0.0)
        answer = await stand.answer()
        assert (answer.ticket, answer.seen_host, answer.reachable) == (7, "127.0.0.1", True)
        assert answer.unix_milliseconds > 1_700_000_000_000
        server.close()
        await server.wait_closed()
        assert not await answers("127.0.0.1", port)

    asyncio.run(course())


def test_a_peer_on_this_machine_is_called_on_loopback_too() -> None:
    """Before, a peer met at the machine's network address was told it was unreachable, and so reduced nothing."""

    async def course() -> None:
        server, port = await listening()
        stand = Stand("127.0.0.2")  # also an address of this machine, and nobody listens there
        stand.desk.ask(ASKER, ProbeAsk(ticket=7, port=port), 0.0)
        assert (await stand.answer()).reachable
        server.close()
        await server.wait_closed()

    asyncio.run(course())


def test_a_peer_without_a_known_address_is_not_called() -> None:
    async def course() -> None:
        stand = Stand(host="")
        stand.desk.ask(ASKER, ProbeAsk(ticket=1, port=9), 0.0)
        answer = await stand.answer()
        assert answer.reachable is None
        assert stand.asked_for == [ASKER]

    asyncio.run(course())


def test_a_host_that_takes_no_calls_is_given_up_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes back at all, as from a host that has vanished."""
    monkeypatch.setattr("dht.meeting.CALL_SECONDS_MAX", 0.1)

    async def course() -> None:
        with socket.socket() as full, ExitStack() as callers:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(2):  # fill the queue of unaccepted connections; the kernel drops any further ones
                caller = callers.enter_context(socket.socket())
                caller.setblocking(False)
                caller.connect_ex(full.getsockname())
            stand, port = Stand(), full.getsockname()[1]
            for asker in OTHERS[: CALLS_MAX + 1]:
                stand.desk.ask(asker, ProbeAsk(ticket=1, port=port), 0.0)
            async with asyncio.timeout(20):
                while len(stand.said) < CALLS_MAX:
                    stand.news.clear()
                    await stand.news.wait()
            assert [answer.reachable for _, answer in stand.said] == [False] * CALLS_MAX
            await asyncio.sleep(0)  # the last call ends with its answer
            stand.news.clear()
            stand.desk.ask(OTHERS[CALLS_MAX], ProbeAsk(ticket=2, port=port), 1.0)
            assert (await stand.answer()).ticket == 2
            await stand.desk.close()

    asyncio.run(course())


def test_calls_are_few_and_answers_are_bounded() -> None:
    async def course() -> None:
        stand = Stand()
        for _ in range(2 * ANSWERS_PER_SECOND_MAX):
            stand.desk.ask(ASKER, ProbeAsk(ticket=1), 0.0)
        assert len(stand.said) == ANSWERS_AT_ONCE_MAX
        for number in range(2 * ANSWERS_PER_SECOND_MAX):
            stand.desk.ask(PeerId(f"stranger {number}"), ProbeAsk(ticket=1), 0.5)
        assert len(stand.said) <= 1.5 * ANSWERS_PER_SECOND_MAX
        for at in (1.0, 1.0 + CALL_INTERVAL_SECONDS / 2):
            stand.desk.ask(ASKER, ProbeAsk(ticket=1, port=9), at)
        for other in OTHERS:
            stand.desk.ask(other, ProbeAsk(ticket=1, port=9), 20.0)
        await asyncio.sleep(0)
        assert len(stand.asked_for) == CALLS_MAX
        assert stand.asked_for.count(ASKER) == 1
        await stand.desk.close()

    asyncio.run(course())


def test_probes_cross_the_wire() -> None:
    for message in (
        ProbeAsk(ticket=3),
        ProbeAsk(ticket=3, port=65535),
        ProbeAnswer(ticket=3, unix_milliseconds=5, seen_host="2001:db8::1", reachable=False),
    ):
        assert decode_header(encode_header(message)) == message
