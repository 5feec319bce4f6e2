"""One contract, two record stores: in memory, and over three real hivemind nodes on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID

from dht.daemon.process import Daemon, DaemonConfig
from dht.errors import NetworkError
from dht.hivemind_store import CALL_SECONDS_MAX, HivemindStore
from dht.identity import Identity, KeyVerifier
from dht.records import Record, RecordBody, RecordKey, evidence_key, make_record, presence_key
from dht.statement import make_statement
from dht.store import RecordStore
from dht.validation import RecordRules
from tests.dht.conftest import ALICE, BOB, CAROL, RUN_ID
from tests.dht.memory_store import MemoryDirectory, MemoryStore
from tests.freezing import frozen

IDENTITIES = (ALICE, BOB, CAROL)
RULES = RecordRules(RUN_ID, KeyVerifier())


@dataclass
class Clock:
    """Real time, which hivemind reads too, moved forward by hand."""

    offset_seconds: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset_seconds


@dataclass
class Swarm:
    """Three peers with a record store each; every test takes keys of its own."""

    clock: Clock
    stores: list[RecordStore]
    cut_off: Callable[[int], Awaitable[None]]
    daemons: list[Daemon] = field(default_factory=list)


async def start_memory(clock: Clock) -> Swarm:
    directory = MemoryDirectory(RULES, clock)
    stores: list[RecordStore] = [MemoryStore(directory, identity) for identity in IDENTITIES]

    async def cut_off(index: int) -> None:
        directory.cut_off(IDENTITIES[index].peer_id)

    return Swarm(clock, stores, cut_off)


async def start_hivemind(clock: Clock, folder: Path) -> Swarm:
    stores: list[RecordStore] = []
    daemons: list[Daemon] = []
    for number, identity in enumerate(IDENTITIES):
        path = folder / str(number)
        identity.save(path)
        initial = await daemons[0].visible_addresses() if daemons else ()
        daemons.append(await Daemon.start(DaemonConfig(path, initial_peers=initial)))
        stores.append(await HivemindStore.start(daemons[-1], identity, RULES, clock))

    async def cut_off(index: int) -> None:
        for other, daemon in enumerate(daemons):
            if other != index:
                await daemon.close()

    return Swarm(clock, stores, cut_off, daemons)


async def stop(swarm: Swarm) -> None:
    for store in swarm.stores:
        await store.close()
    for daemon in swarm.daemons:
        await daemon.close()


@pytest.fixture(scope="module", params=["memory", "hivemind"])
def swarm(
    request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Swarm]:
    if request.param == "memory":
        swarm = runner.run(start_memory(Clock()))
    else:
        swarm = runner.run(start_hivemind(Clock(), tmp_path_factory.mktemp("keys")))
    yield swarm
    runner.run(stop(swarm))


def test_everyone_reads_what_anyone_wrote(swarm: Swarm, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        key = presence_key(RUN_ID, 1)
        for store, identity in zip(swarm.stores, IDENTITIES, strict=True):
            await store.put(key, f"I am {identity.peer_id}".encode(), 60)
        views = [await store.get(key) for store in swarm.stores]
        assert views[0] == views[1] == views[2]
        assert [(r.sender, r.payload.decode()) for r in views[0]] == sorted(
            (i.peer_id, f"I am {i.peer_id}") for i in IDENTITIES
        )
        assert all(0 < r.expires_unix_seconds - r.issued_unix_seconds <= 60.001 for r in views[0])

    runner.run(scenario())


def test_an_unknown_key_is_empty(swarm: Swarm, runner: asyncio.Runner) -> None:
    assert runner.run(swarm.stores[0].get(presence_key(RUN_ID, 99))) == []


def test_keys_do_not_mix(swarm: Swarm, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        await swarm.stores[0].put(presence_key(RUN_ID, 21), b"one", 60)
        await swarm.stores[0].put(presence_key(RUN_ID, 22), b"two", 60)
        assert [r.payload for r in await swarm.stores[1].get(presence_key(RUN_ID, 21))] == [b"one"]

    runner.run(scenario())


def test_the_later_record_wins_even_with_a_shorter_life(swarm: Swarm, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        key = presence_key(RUN_ID, 2)
        await swarm.stores[0].put(key, b"first, for long", 300)
        await swarm.stores[0].put(key, b"second, for a moment", 10)
        for store in swarm.stores:
            assert [r.payload for r in await store.get(key)] == [b"second, for a moment"]

    runner.run(scenario())


def test_a_record_is_gone_after_its_lifetime_and_not_before(swarm: Swarm, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        key = presence_key(RUN_ID, 3)
        await swarm.stores[0].put(key, b"short", 20)
        await swarm.stores[1].put(key, b"long", 200)
        assert len(await swarm.stores[2].get(key)) == 2
        swarm.clock.offset_seconds += 21
        for store in swarm.stores:
            assert [r.payload for r in await store.get(key)] == [b"long"]

    runner.run(scenario())


def test_limits_are_refused_before_anything_is_sent(swarm: Swarm, runner: asyncio.Runner) -> None:
    with pytest.raises(ValueError, match="at most 512 bytes"):
        runner.run(swarm.stores[0].put(evidence_key(RUN_ID), bytes(513), 60))
    with pytest.raises(ValueError, match="at most 300 seconds"):
        runner.run(swarm.stores[0].put(presence_key(RUN_ID, 4), b"", 301))
    assert runner.run(swarm.stores[1].get(evidence_key(RUN_ID))) == []


def signed(identity: Identity, shard: int, payload: bytes, issued: float, lifetime: float = 60) -> Record:
    body = RecordBody(
        payload=payload, issued_unix_milliseconds=int(issued * 1000), lifetime_milliseconds=int(lifetime * 1000)
    )
    return make_record(identity, presence_key(RUN_ID, shard), body)


async def push(store: Any, record: Record, subkey: object = None, expires: float | None = None) -> list[bool | None]:
    """Have `store`'s node send a record to every other node as it stands, past all of our own checks."""
    node, place = store._node, DHTID.generate(source=record.key.text)
    found = await node.find_nearest_nodes([place], exclude_self=True)
    answers = []
    for peer in found[place].values():
        answer = await node.protocol.call_store(
            peer,
            [place],
            [record.value],
            [record.expires_unix_seconds if expires is None else expires],
            [subkey or record.sender],
            in_cache=True,
        )
        answers.append(answer and answer[0])
    return answers


real_only = pytest.mark.parametrize("swarm", ["hivemind"], indirect=True)


@real_only
def test_a_probe_calls_a_peer_that_nobody_leads_to_any_more(swarm: Swarm, runner: asyncio.Runner) -> None:
    """As after a partition: everybody else answers, so nothing looks wrong."""

    async def scenario() -> None:
        alice, lost = swarm.stores[0], PeerID.from_base58(CAROL.peer_id)
        swarm.daemons[0].remember(await swarm.daemons[2].visible_addresses())
        table = alice._protocol.routing_table  # type: ignore[attr-defined]
        del table[table[lost]]
        await alice.probe()  # type: ignore[attr-defined]
        assert lost in table

    runner.run(scenario())


@real_only
def test_forgeries_sent_past_our_own_checks_are_refused_by_others(swarm: Swarm, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        now = swarm.clock()
        honest = signed(BOB, 10, b"from Bob", now)
        mallory = swarm.stores[0]
        assert await push(mallory, honest, subkey=ALICE.peer_id) == [False, False]
        assert await push(mallory, honest, expires=now + 3000) == [False, False]
        assert await push(mallory, signed(BOB, 10, b"from the future", now + 100)) == [False, False]
        assert await push(mallory, signed(BOB, 10, b"long gone", now - 100)) == [False, False]
        assert await swarm.stores[2].get(presence_key(RUN_ID, 10)) == []
        assert await push(mallory, honest) == [True, True]
        assert [r.payload for r in await swarm.stores[2].get(presence_key(RUN_ID, 10))] == [b"from Bob"]

    runner.run(scenario())


@real_only
def test_kinds_that_only_other_versions_know_are_refused_without_harm(swarm: Swarm, runner: asyncio.Runner) -> None:
    """As the heads of chains that earlier ones wrote: under their own key, and among records that count."""

    async def scenario() -> None:
        key, heads = presence_key(RUN_ID, 23), RecordKey(RUN_ID, "heads", fragment=1)
        known = signed(BOB, 23, b"from Bob", swarm.clock())
        statement = make_statement(BOB, heads.context, known.body)
        unknown = Record(heads, BOB.peer_id, known.body, statement, statement.to_wire())
        assert await push(swarm.stores[0], unknown) == [False, False]
        assert await push(swarm.stores[0], replace(unknown, key=key)) == [False, False]
        assert await push(swarm.stores[0], known) == [True, True]
        assert [r.payload for r in await swarm.stores[2].get(key)] == [b"from Bob"]

    runner.run(scenario())


@real_only
def test_replaying_an_old_record_does_not_make_the_new_one_vanish(swarm: Swarm, runner: asyncio.Runner) -> None:
    """hivemind alone would drop the newer record when the replayed older one expires."""

    async def scenario() -> None:
        key = presence_key(RUN_ID, 11)
        old = signed(BOB, 11, b"old", swarm.clock() - 1, lifetime=5)
        await swarm.stores[1].put(key, b"new", 200)
        assert await push(swarm.stores[0], old) == [False, False]
        swarm.clock.offset_seconds += 10
        for store in swarm.stores:
            assert [r.payload for r in await store.get(key)] == [b"new"]

    runner.run(scenario())


@real_only
def test_one_late_entry_does_not_hide_the_others(swarm: Swarm, runner: asyncio.Runner) -> None:
    """hivemind alone answers from its cache if the entry there expires last, and leaves the rest out."""

    async def scenario() -> None:
        key = presence_key(RUN_ID, 12)
        await swarm.stores[1].put(key, b"Bob", 30)
        assert True in await push(swarm.stores[0], signed(ALICE, 12, b"Alice", swarm.clock(), lifetime=300))
        protocol, place = swarm.stores[0]._node.protocol, DHTID.generate(source=key.text)  # type: ignore[attr-defined]
        for daemon in swarm.daemons[1:]:
            answer = await protocol.call_find(daemon.p2p.peer_id, [place])
            assert {sender for sender, _ in answer[place][0].value.items()} == {ALICE.peer_id, BOB.peer_id}

    runner.run(scenario())


@real_only
def test_a_frozen_peer_holds_up_no_other(swarm: Swarm, runner: asyncio.Runner) -> None:
    """Its connection stays and it says nothing: the others answer, and nothing is kept for what it does not."""

    async def scenario() -> None:
        alice, bob, carol = swarm.stores
        key = presence_key(RUN_ID, 13)
        assert isinstance(alice, HivemindStore)
        assert isinstance(bob, HivemindStore)
        alice._protocol.wait_timeout = bob._protocol.wait_timeout = 0.3
        with frozen(swarm.daemons[2].pid):
            await alice.put(key, b"Alice", 60)
            assert [record.payload for record in await alice.get(key)] == [b"Alice"]
            assert [record.payload for record in await bob.get(key)] == [b"Alice"]
            with pytest.raises(NetworkError, match=r"could not meet within 0\.1 seconds"):
                async with alice._deadline("meet", 0.1):
                    await alice._protocol.call_ping(PeerID.from_base58(CAROL.peer_id))
        alice._protocol.wait_timeout = bob._protocol.wait_timeout = CALL_SECONDS_MAX
        assert all(call.done() for call in swarm.daemons[0].p2p._client.control._pending_calls.values())
        await carol.put(key, b"Carol", 60)
        assert {record.payload for record in await bob.get(key)} == {b"Alice", b"Carol"}

    runner.run(scenario())


def test_a_peer_that_nobody_answers_is_told_so(swarm: Swarm, runner: asyncio.Runner) -> None:
    """Last in this module: it ends the network."""

    async def scenario() -> None:
        await swarm.cut_off(1)
        with pytest.raises(NetworkError):
            await swarm.stores[1].put(presence_key(RUN_ID, 20), b"anyone?", 60)
        with pytest.raises(NetworkError):
            await swarm.stores[1].get(presence_key(RUN_ID, 20))

    runner.run(scenario())


def test_closing_twice_is_fine(swarm: Swarm, runner: asyncio.Runner) -> None:
    runner.run(swarm.stores[1].close())
    runner.run(swarm.stores[1].close())
