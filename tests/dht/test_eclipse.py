"""Mined keys lie nearest to a record key and swallow what belongs there: real hivemind nodes on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hivemind.dht.routing import DHTID

from dht import hivemind_store
from dht.addresses import PeerAddress
from dht.hivemind_store import ACQUAINTANCES, REPLICAS, HivemindStore, acquaintances
from dht.identity import KeyVerifier
from dht.records import presence_key
from dht.validation import RecordRules
from tests.dht.conftest import ALICE, BOB, CAROL, RUN_ID
from tests.dht.eclipse import Clock, Nodes, address_of, keys, mined_keys

HONEST = (ALICE, BOB, CAROL)
KEY = presence_key(RUN_ID)
RULES = RecordRules(RUN_ID, KeyVerifier())


@dataclass
class Eclipse:
    """Alice began the run, Bob came before the hostile nodes, and Carol, whom Alice invited too, after them."""

    clock: Clock
    stores: list[HivemindStore]
    hostile: frozenset[str]


async def begin(nodes: Nodes, clock: Clock) -> Eclipse:
    alice = await nodes.start(ALICE)
    invite = await address_of(alice)
    bob = await nodes.start(BOB, invite)
    mined, _ = mined_keys(REPLICAS, KEY, HONEST)
    await nodes.start_hostile(mined, [invite, await address_of(bob)])
    carol = await nodes.start(CAROL, invite)
    return Eclipse(clock, [alice, bob, carol], frozenset(one.peer_id for one in mined))


@pytest.fixture(scope="module")
def eclipse(runner: asyncio.Runner, short_folder: Path) -> Iterator[Eclipse]:
    clock = Clock()
    nodes = Nodes(short_folder, RULES, clock)
    try:
        yield runner.run(begin(nodes, clock))
    finally:
        runner.run(nodes.close())


def test_mined_keys_are_all_that_is_responsible(eclipse: Eclipse, runner: asyncio.Runner) -> None:
    """Else the next test shows nothing."""

    async def scenario() -> None:
        for store in eclipse.stores:
            responsible = await store._nearest(DHTID.generate(source=KEY.text))
            assert {peer.to_base58() for peer in responsible} == eclipse.hostile

    runner.run(scenario())


def test_peers_of_one_invite_find_each_other_all_the_same(eclipse: Eclipse, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        for store, identity in zip(eclipse.stores, HONEST, strict=True):
            await store.put(KEY, identity.peer_id.encode(), 60)
        everybody = sorted(identity.peer_id for identity in HONEST)
        for store in eclipse.stores:
            assert [record.sender for record in await store.get(KEY)] == everybody

    runner.run(scenario())


def test_a_responsible_peer_that_never_comes_to_an_end_hides_no_other(
    eclipse: Eclipse, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(place: object, call: object) -> list[object]:
        return [await asyncio.Event().wait()]

    async def scenario() -> None:
        alice, _, carol = eclipse.stores
        await alice.put(KEY, b"here", 60)
        monkeypatch.setattr(carol, "_ask_nearest", never)
        monkeypatch.setattr(hivemind_store, "PATIENCE_SECONDS", 1.0)
        assert ALICE.peer_id in [record.sender for record in await carol.get(KEY) if record.payload == b"here"]

    runner.run(scenario())


def test_on_the_way_to_a_place_nobody_sends_what_lies_there(
    eclipse: Eclipse, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write brought the records of all, from whoever was asked the way, and each look brought them twice."""

    async def scenario() -> None:
        alice, _, carol = eclipse.stores
        await alice.put(KEY, b"here", 60)
        sent: list[object] = []

        def note(*dictionary: object) -> bool:
            sent.append(dictionary)
            return True

        monkeypatch.setattr(carol._protocol, "_validate_dictionary", note)
        await carol.put(KEY, b"here", 60)
        assert sent == []
        await carol.get(KEY)
        assert 0 < len(sent) <= REPLICAS + ACQUAINTANCES

    runner.run(scenario())


def address(number: int, port: int = 7331) -> PeerAddress:
    return PeerAddress.parse(f"/ip4/127.0.0.1/tcp/{port}/p2p/{KEYS[number].peer_id}")


KEYS = keys("acquaintance", 8)
INVITED, KNOWN = [address(0), address(1)], [address(number) for number in range(8)]


def test_one_of_those_who_invited_us_is_always_asked_and_nobody_twice() -> None:
    seen = set()
    for _ in range(200):
        drawn = acquaintances(INVITED, KNOWN, {KEYS[7].peer_id})
        assert len(drawn) == len({one.peer_id for one in drawn}) == ACQUAINTANCES
        assert drawn[0] in INVITED
        seen |= set(drawn)
    assert seen == set(KNOWN[:7])


def test_a_peer_that_is_asked_anyway_is_no_acquaintance() -> None:
    assert acquaintances(INVITED, INVITED, {KEYS[0].peer_id}) == [INVITED[1]]
    assert acquaintances([], [address(0, 1), address(0, 2)], set()) in ([address(0, 1)], [address(0, 2)])
    assert acquaintances([], [], set()) == []
