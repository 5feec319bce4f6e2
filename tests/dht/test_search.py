"""How often a record store searches for who is responsible for a place: real hivemind nodes on loopback."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dht import hivemind_store
from dht.hivemind_storage import place_of
from dht.hivemind_store import HivemindStore
from dht.identity import KeyVerifier
from dht.records import presence_key
from dht.validation import RecordRules
from tests.dht.conftest import ALICE, BOB, CAROL, RUN_ID
from tests.dht.eclipse import Clock, Nodes, address_of, delay

KEY = presence_key(RUN_ID)
RULES = RecordRules(RUN_ID, KeyVerifier())


@dataclass
class Searcher:
    """Bob, whose searches are counted, in a network that Alice began."""

    nodes: Nodes
    alice: HivemindStore
    bob: HivemindStore
    searches: int = 0

    async def begin(self) -> None:
        search = self.bob._search

        async def counted(place: object) -> list[object]:
            self.searches += 1
            return await search(place)

        self.bob._search = counted  # type: ignore[method-assign]
        for _ in range(2):  # the first search meets whom it asks, the next one finds all of them met
            await self.look()

    async def look(self, payload: bytes = b"here") -> int:
        """Write and read once; returns how many searches that took."""
        before = self.searches
        await self.bob.put(KEY, payload, 60)
        await self.bob.get(KEY)
        return self.searches - before


@pytest.fixture
def searcher(runner: asyncio.Runner) -> Iterator[Searcher]:
    async def begin(nodes: Nodes) -> Searcher:
        alice = await nodes.start(ALICE)
        found = Searcher(nodes, alice, await nodes.start(BOB, await address_of(alice)))
        await found.begin()
        return found

    with tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(Path(folder), RULES, Clock())
        try:
            yield runner.run(begin(nodes))
        finally:
            runner.run(nodes.close())


def test_a_found_peer_is_asked_again_without_a_search(searcher: Searcher, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        assert await searcher.look() == 0
        assert [record.sender for record in await searcher.alice.get(KEY)] == [BOB.peer_id]

    runner.run(scenario())


def test_not_for_ever(searcher: Searcher, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hivemind_store, "FOUND_SECONDS", 0.0)

    async def scenario() -> None:
        searcher.bob._found.clear()
        assert await searcher.look() == 2

    runner.run(scenario())


def test_somebody_nearer_is_met_and_asked_from_then_on(searcher: Searcher, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        carol = await searcher.nodes.start(CAROL, await address_of(searcher.alice), await address_of(searcher.bob))
        assert await searcher.look(b"news") > 0
        kept = carol._storage.table.get(place_of(KEY).to_bytes(), carol._clock())
        assert [(one.sender, one.body.payload) for one in kept] == [(BOB.peer_id, b"news")]

    runner.run(scenario())


def test_a_peer_that_is_gone_is_not_asked_for_long(searcher: Searcher, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        carol = await searcher.nodes.start(CAROL, await address_of(searcher.alice), await address_of(searcher.bob))
        await searcher.look()
        await searcher.look()
        await carol.close()
        await carol._daemon.close()
        await searcher.look()
        assert CAROL.peer_id not in [peer.to_base58() for peer in await searcher.bob._nearest(place_of(KEY))]

    runner.run(scenario())


def test_a_search_that_is_given_up_leaves_nothing_behind(searcher: Searcher, runner: asyncio.Runner) -> None:
    """Ten lines each in the log of a peer that waits for slow ones: "Task was destroyed but it is pending"."""

    async def scenario() -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        delay(searcher.alice, 0.5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(searcher.bob._search(place_of(KEY)), 0.1)
        gc.collect()
        assert not complaints

    runner.run(scenario())


def test_places_are_kept_in_bounds() -> None:
    found = hivemind_store.FoundPeers()
    for place in range(hivemind_store.PLACES_KEPT + 1):
        found.keep(place, ["peer"], [], 0.0)
    assert found.known(0, [], 1.0) is None
    assert found.known(1, [], 1.0) == ["peer"]
