"""A daemon that asks one thing and goes away, at real doors on loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dht.addresses import PeerAddress
from dht.daemon import calls
from dht.daemon.caller import Caller
from dht.daemon.process import Daemon, DaemonConfig
from dht.door import Door
from dht.identity import Identity
from dht.refusal import Refusal
from tests.dht.conftest import ALICE, BOB, CAROL, DAVE
from tests.dht.test_door import TICKET, OnlyWithTicket

GONE = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{CAROL.peer_id}")


async def running(folder: Path, identity: Identity) -> tuple[Daemon, PeerAddress]:
    """A daemon whose door is kept, and that shows what lets it in elsewhere."""
    key, door = folder / identity.peer_id[-8:], Door(lambda _: TICKET)
    if not key.exists():
        identity.save(key)
    door.policy = OnlyWithTicket()
    daemon = await Daemon.start(DaemonConfig(key, runtime_parent=folder, door=door))
    (address,) = await daemon.visible_addresses()
    return daemon, address


@pytest.mark.parametrize(("shown", "said"), [(b"", Refusal.NO_PASS), (b"sesame", Refusal.FALSE_PASS), (TICKET, None)])
def test_a_caller_hears_what_the_door_says(shown: bytes, said: Refusal | None, short_folder: Path) -> None:
    async def scenario() -> None:
        daemon, address = await running(short_folder, ALICE)
        try:
            async with Caller.start(short_folder) as caller:
                assert await caller.meets((GONE, address), Door(lambda _: shown))
                assert caller.refusals == [said]
        finally:
            await daemon.close()

    asyncio.run(scenario())


def test_a_caller_is_led_through_a_door_to_who_is_there_and_to_nobody_else(short_folder: Path) -> None:
    async def scenario() -> None:
        daemon, address = await running(short_folder, ALICE)
        other, _ = await running(short_folder, DAVE)
        try:
            await other.dial(address)
            assert await other.knock(ALICE.peer_id)
            async with Caller.start(short_folder) as caller:
                assert not await caller.meets((GONE,), Door())
                assert await caller.meets((address,), Door(lambda _: TICKET))
                assert await caller.can_find(DAVE.peer_id)
                assert not await caller.can_find(BOB.peer_id)
        finally:
            await other.close()
            await daemon.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32])
def test_lengths_are_read_as_they_are_written(number: int) -> None:
    async def read() -> int:
        reader = asyncio.StreamReader()
        reader.feed_data(calls.varint(number))
        return await calls.read_varint(reader)

    assert asyncio.run(read()) == number


def test_a_length_without_an_end_is_no_length() -> None:
    async def read() -> int:
        reader = asyncio.StreamReader()
        reader.feed_data(b"\xff" * 64)
        return await calls.read_varint(reader)

    with pytest.raises(calls.DaemonError):
        asyncio.run(read())
