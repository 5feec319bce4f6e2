"""What we believe of the answers to our own calls to the DHT."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from dht.answer_guard import NEIGHBOURS_MAX, PEER_ID_BYTES_MAX, VALUE_BYTES_MAX, check_answer, guard_answers
from dht.errors import PeerError
from dht.guard import node_id_of
from dht.hivemind_store import HivemindStore
from dht.identity import KeyVerifier
from dht.table import ENTRIES_PER_KEY_MAX
from dht.validation import RecordRules
from tests.dht.conftest import ALICE, BOB, RUN_ID
from tests.dht.eclipse import Nodes, address_of, keys

PING, STORE, FIND = "DHTProtocol.rpc_ping", "DHTProtocol.rpc_store", "DHTProtocol.rpc_find"
BOBS_ID = PeerID.from_base58(BOB.peer_id)
BOBS = dht_pb2.NodeInfo(node_id=node_id_of(BOB.peer_id).to_bytes())
ALICES = dht_pb2.NodeInfo(node_id=node_id_of(ALICE.peer_id).to_bytes())
NO_NODE_ID = dht_pb2.NodeInfo(node_id=b"\xff" * 21)


def found(info: Any = BOBS, **result: Any) -> Any:
    return dht_pb2.FindResponse(results=[dht_pb2.FindResult(type=dht_pb2.NOT_FOUND, **result)], peer=info)


def records(count: int) -> Any:
    """A dictionary of so many, which are none: they are counted before they are looked at."""
    whole = DictionaryDHTValue()
    for number in range(count):
        whole.store(f"{number}", b"", 4e9)
    result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=MSGPackSerializer.dumps(whole))
    return dht_pb2.FindResponse(results=[result], peer=BOBS)


def neighbours(count: int) -> dict[str, list[bytes]]:
    peers = [identity.peer_id for identity in keys("neighbour", count)]
    return {
        "nearest_node_ids": [node_id_of(peer).to_bytes() for peer in peers],
        "nearest_peer_ids": [PeerID.from_base58(peer).to_bytes() for peer in peers],
    }


@pytest.mark.parametrize(
    "answer",
    [
        dht_pb2.PingResponse(peer=BOBS, available=True),
        dht_pb2.PingResponse(),  # of a peer that nobody can call
        dht_pb2.StoreResponse(peer=BOBS, store_ok=[True]),
        dht_pb2.FindResponse(peer=BOBS),
        found(),
        records(ENTRIES_PER_KEY_MAX),
        found(**neighbours(NEIGHBOURS_MAX), value=bytes(VALUE_BYTES_MAX)),
    ],
)
def test_answers_of_honest_peers_pass(answer: Any) -> None:
    check_answer(BOBS_ID, answer)


@pytest.mark.parametrize("info", [ALICES, NO_NODE_ID])
@pytest.mark.parametrize("answer", [dht_pb2.PingResponse, dht_pb2.StoreResponse, dht_pb2.FindResponse])
def test_a_node_id_of_another_key_is_refused(answer: Any, info: Any) -> None:
    with pytest.raises(PeerError, match="does not follow"):
        check_answer(BOBS_ID, answer(peer=info))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (found(**neighbours(NEIGHBOURS_MAX + 1)), "21 node ids"),
        (found(nearest_node_ids=neighbours(1)["nearest_node_ids"]), "1 node ids and 0 peer ids"),
        (found(nearest_node_ids=[bytes(20)], nearest_peer_ids=[b"\xff" * (PEER_ID_BYTES_MAX + 1)]), "65 bytes"),
        (found(nearest_node_ids=[bytes(20)], nearest_peer_ids=[BOBS_ID.to_bytes()]), "does not follow"),
        (found(nearest_node_ids=[b"\xff" * 21], nearest_peer_ids=[BOBS_ID.to_bytes()]), "does not follow"),
        (found(value=bytes(VALUE_BYTES_MAX + 1)), "over the limit"),
        (dht_pb2.FindResponse(results=[dht_pb2.FindResult()] * 2), "2 results"),
        (records(ENTRIES_PER_KEY_MAX + 1), "more records than a place holds"),
        (dht_pb2.FindResponse(results=[dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY)]), "cannot be read"),
    ],
)
def test_an_answer_that_nobody_honest_gives_is_refused(answer: Any, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        check_answer(BOBS_ID, answer)


def test_a_long_peer_id_is_refused_before_it_is_written_in_base58(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: bytes) -> None:
        raise AssertionError("written in base58")

    monkeypatch.setattr("dht.answer_guard.PeerID", never)
    with pytest.raises(PeerError, match="60000 bytes"):
        check_answer(BOBS_ID, found(nearest_node_ids=[bytes(20)], nearest_peer_ids=[b"\xff" * 60_000]))


def test_a_call_reaches_its_peer_as_it_was_made() -> None:
    async def rpc_ping(request: Any, **options: float) -> Any:
        return dht_pb2.PingResponse(peer=BOBS, dht_time=options["timeout"])

    protocol = SimpleNamespace(get_stub=lambda peer: SimpleNamespace(rpc_ping=rpc_ping, peer=peer))
    guard_answers(protocol)
    assert asyncio.run(protocol.get_stub(BOBS_ID).rpc_ping(dht_pb2.PingRequest(), timeout=3.0)).dht_time == 3.0
    with pytest.raises(PeerError):
        asyncio.run(protocol.get_stub(PeerID.from_base58(ALICE.peer_id)).rpc_ping(dht_pb2.PingRequest()))


@pytest.fixture(scope="module")
def stores(runner: asyncio.Runner, short_folder: Path) -> Iterator[list[HivemindStore]]:
    nodes = Nodes(short_folder, RecordRules(RUN_ID, KeyVerifier()), time.time)

    async def start() -> list[HivemindStore]:
        alice = await nodes.start(ALICE)
        return [alice, await nodes.start(BOB, await address_of(alice))]

    try:
        yield runner.run(start())
    finally:
        runner.run(nodes.close())


def answer_with(store: HivemindStore, monkeypatch: pytest.MonkeyPatch, handler: str, answer: Any) -> None:
    """Have a node answer so from now on."""

    async def hostile(request: bytes, caller: Any) -> bytes:
        packed: bytes = answer.SerializeToString()
        return packed

    monkeypatch.setitem(store._daemon.p2p._client.control.unary_handlers, handler, hostile)


LONG = found(nearest_node_ids=[bytes(20)], nearest_peer_ids=[b"\xff" * 1000])


@pytest.mark.parametrize(
    ("handler", "answer"),
    [
        (PING, dht_pb2.PingResponse(peer=NO_NODE_ID, available=True)),
        (PING, dht_pb2.PingResponse(peer=ALICES, available=True)),
        (STORE, dht_pb2.StoreResponse(peer=ALICES, store_ok=[True])),
        (FIND, LONG),
        (FIND, found(ALICES)),
    ],
)
def test_a_peer_that_answers_so_counts_as_silent_and_is_dropped(
    stores: list[HivemindStore], runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, handler: str, answer: Any
) -> None:
    alice, bob = stores

    async def scenario() -> None:
        protocol = alice._protocol
        place = node_id_of("somewhere")
        calls = {
            PING: lambda: protocol.call_ping(BOBS_ID),
            STORE: lambda: protocol.call_store(BOBS_ID, [place], [b"value"], [time.time() + 60], ["subkey"]),
            FIND: lambda: protocol.call_find(BOBS_ID, [place]),
        }
        assert await calls[handler]() is not None
        await asyncio.sleep(0)  # hivemind notes in a task of its own who has answered
        assert list(protocol.routing_table.uid_to_peer_id.items()) == [(node_id_of(BOB.peer_id), BOBS_ID)]
        answer_with(bob, monkeypatch, handler, answer)
        assert await calls[handler]() is None
        await asyncio.sleep(0)
        assert not protocol.routing_table.uid_to_peer_id

    runner.run(scenario())


def test_a_probe_forgets_how_often_others_failed(stores: list[HivemindStore], runner: asyncio.Runner) -> None:
    """hivemind counts for ever, also for peers that somebody only claims to know."""
    blacklist = stores[0]._node.blacklist
    blacklist.register_failure(PeerID(bytes(34)))
    assert blacklist.ban_counter
    runner.run(stores[0].probe())
    assert not blacklist.ban_counter
