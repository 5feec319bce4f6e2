"""Who has shown no pass is refused everywhere, and told why where it knocks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from dht.allowance import Answers, StrangersShare
from dht.daemon.kademlia import FIND_NODE, Kademlia, Message
from dht.door import KNOCKING_MAX, WELCOME, Door, framed
from dht.errors import PeerError
from dht.guard import CallGuard, node_id_of, show_pass
from dht.hivemind_storage import SignedRecordValidator, TableStorage, place_of
from dht.identity import Identity, KeyVerifier, PeerId
from dht.records import RecordBody, make_record, presence_key
from dht.refusal import ADVICE, Refusal
from dht.validation import RecordRules, check_form
from tests.dht.conftest import ALICE, BOB, CAROL, NOW, RUN_ID

TICKET = b"let me in"


class OnlyWithTicket:
    """Lets in whoever shows the right words; `out` are those for whom they do not count any more."""

    def __init__(self) -> None:
        self.seen: set[PeerId] = set()
        self.out: set[PeerId] = set()

    def refusal(self, peer: PeerId, shown: bytes) -> Refusal | None:
        if not self.proves(peer, shown):
            return Refusal.FALSE_PASS if shown else Refusal.NO_PASS
        if peer in self.out:
            return Refusal.WITHDRAWN
        self.seen.add(peer)
        return None

    def proves(self, peer: PeerId, shown: bytes) -> bool:
        return shown == TICKET

    def knows(self, peer: PeerId) -> bool:
        return peer in self.seen - self.out


@pytest.fixture
def door() -> Door:
    found = Door()
    found.policy = OnlyWithTicket()
    return found


class Wire:
    """Stands in for a stream's writer; what is written can be read."""

    def __init__(self) -> None:
        self.written = b""
        self.transport = SimpleNamespace(abort=lambda: None)

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        pass


async def answered(door: Door, said: bytes, caller: Identity = BOB) -> bytes:
    reader, writer = asyncio.StreamReader(), Wire()
    reader.feed_data(said)
    reader.feed_eof()
    await door.answer(SimpleNamespace(peer_id=PeerID.from_base58(caller.peer_id)), reader, writer)  # type: ignore[arg-type]
    return writer.written[2:]


def test_a_knocking_peer_is_told_in_one_word(door: Door) -> None:
    assert asyncio.run(answered(door, framed(b""))) == b"no_pass"
    assert asyncio.run(answered(door, framed(b"sesame"))) == b"false_pass"
    assert not door.knows(BOB.peer_id)
    assert asyncio.run(answered(door, framed(TICKET))) == WELCOME
    assert door.knows(BOB.peer_id)
    assert all(ADVICE[refusal] for refusal in Refusal)


@pytest.mark.parametrize("said", [b"", b"\x00", b"\xff\xff" + bytes(600), framed(TICKET)[:-1]])
def test_nonsense_at_the_door_is_not_answered(door: Door, said: bytes) -> None:
    assert asyncio.run(answered(door, said)) == b""


def test_no_more_wait_at_the_door_than_there_is_room_for(door: Door) -> None:
    async def crowd() -> None:
        waiting = []
        for number in range(KNOCKING_MAX):
            info = SimpleNamespace(peer_id=PeerID.from_base58(Identity(number.to_bytes(32, "big")).peer_id))
            waiting.append(asyncio.ensure_future(door.answer(info, asyncio.StreamReader(), Wire())))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert await answered(door, framed(TICKET)) == b""
        assert door.refusal(BOB.peer_id, TICKET) is None  # shown with a call, and known from now on
        assert await answered(door, framed(TICKET)) == WELCOME
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(crowd())


def test_calls_without_a_pass_are_refused_and_others_are_not(door: Door) -> None:
    guard = CallGuard(door)
    info = dht_pb2.NodeInfo(node_id=node_id_of(BOB.peer_id).to_bytes())
    for handler, request in (
        ("DHTProtocol.rpc_ping", dht_pb2.PingRequest(peer=info)),
        ("DHTProtocol.rpc_find", dht_pb2.FindRequest(keys=[bytes(20)], peer=info)),
        ("DHTProtocol.rpc_store", dht_pb2.StoreRequest(peer=info)),
    ):
        with pytest.raises(PeerError, match="no_pass"):
            guard.check(PeerID.from_base58(BOB.peer_id), handler, request.SerializeToString(), 0.0)
        show_pass(request, TICKET)
        guard.check(PeerID.from_base58(BOB.peer_id), handler, request.SerializeToString(), 0.0)


def test_records_without_a_pass_are_neither_believed_nor_kept(door: Door) -> None:
    rules, key = RecordRules(RUN_ID, KeyVerifier(), door), presence_key(RUN_ID)
    storage = TableStorage(lambda: NOW, door)
    for shown, why in ((None, "its sender has no pass"), (TICKET, None)):
        body = RecordBody(
            payload=b"here", issued_unix_milliseconds=int(NOW * 1000), lifetime_milliseconds=9000, admission=shown
        )
        record = make_record(BOB, key, body)
        assert check_form(record, rules) == why
        assert storage.store_subkey(place_of(key), BOB.peer_id, record.value, NOW + 9) is (why is None)


def test_a_record_of_who_was_let_in_once_is_believed_of_others_and_not_kept(door: Door) -> None:
    """hivemind drops a whole answer for one record that it does not believe: others may not have heard yet."""
    assert isinstance(door.policy, OnlyWithTicket)
    door.policy.out.add(BOB.peer_id)
    body = RecordBody(
        payload=b"here", issued_unix_milliseconds=int(NOW * 1000), lifetime_milliseconds=9000, admission=TICKET
    )
    record = make_record(BOB, presence_key(RUN_ID), body)
    assert check_form(record, RecordRules(RUN_ID, KeyVerifier(), door)) is None
    place = place_of(record.key)
    assert not TableStorage(lambda: NOW, door).store_subkey(place, BOB.peer_id, record.value, NOW + 9)
    assert SignedRecordValidator(RecordRules(RUN_ID, KeyVerifier(), door)) is not None


def test_a_search_of_a_stranger_finds_only_whom_it_asks(door: Door) -> None:
    """libp2p searches through nobody whose first answer names nobody, and a pass comes after that."""

    def found() -> list[tuple[PeerId, list[bytes]]]:
        closer = Message.FromString(searched(door, Answers())[1:]).closer
        return [(PeerId(PeerID(one.id).to_base58()), list(one.addrs)) for one in closer]

    assert found() == [(CAROL.peer_id, [])]
    assert door.refusal(BOB.peer_id, TICKET) is None
    assert [(peer, bool(addresses)) for peer, addresses in found()] == [(ALICE.peer_id, True)]


class Everybody:
    async def places(self, asked: bytes) -> dict[PeerId, tuple[bytes, ...]]:
        return {ALICE.peer_id: (b"\x04\x7f\x00\x00\x01\x06\x10\x00",)}


def searched(door: Door, answers: Answers, by: PeerId = BOB.peer_id) -> bytes:
    """What a caller's search for Alice brings it; nothing if its stream is closed."""
    asked = bytes(Message(type=FIND_NODE, key=PeerID.from_base58(ALICE.peer_id).to_bytes()).SerializeToString())

    async def search() -> bytes:
        reader, writer = asyncio.StreamReader(), Wire()
        reader.feed_data(bytes([len(asked)]) + asked)
        reader.feed_eof()
        kademlia = Kademlia(CAROL.peer_id, Everybody(), lambda: 0.0, door, answers)
        await kademlia.serve(SimpleNamespace(peer_id=PeerID.from_base58(by)), reader, writer)  # type: ignore[arg-type]
        return writer.written

    return asyncio.run(search())


def test_answers_to_searches_count_as_upload_and_end_with_it() -> None:
    """256 a second of 1.4 kB each were 32 GB in a day that no limit of the owner's saw."""
    door, answers = Door(), Answers()
    answers.strangers = StrangersShare(per_second=1.0, at_once=100.0)
    answers.strangers.is_member = lambda peer: peer == CAROL.peer_id
    given = [searched(door, answers) for _ in range(4)]
    assert [bool(one) for one in given] == [True, True, False, False]
    assert answers.sent_bytes == sum(map(len, given)) > 100
    assert searched(door, answers, CAROL.peer_id) == given[0]
    answers.strangers.closed = True
    assert searched(door, answers, CAROL.peer_id) == b""
    assert answers.sent_bytes == 3 * len(given[0])
