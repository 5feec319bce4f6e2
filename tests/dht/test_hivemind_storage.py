"""The two places where hivemind calls back into our rules, without a network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hivemind.dht.crypto import DHTRecord
from hivemind.dht.routing import DHTID
from hivemind.utils import MSGPackSerializer

from dht.errors import PeerError
from dht.hivemind_storage import (
    DICTIONARY_CODE,
    HANDOVER_BYTES_MAX,
    HANDOVER_RECORDS_MAX,
    SignedRecordValidator,
    TableStorage,
    entries_in,
)
from dht.identity import Identity, KeyVerifier, PeerId
from dht.records import Record, RecordBody, RecordKey, make_record, presence_key
from dht.validation import RecordRules
from tests.dht.conftest import ALICE, BOB, RUN_ID

NOW = 4_000_000_000.0  # hivemind drops what has expired by the real clock while it packs an answer
KEY = presence_key(RUN_ID)
RULES = RecordRules(RUN_ID, KeyVerifier())


def record(signer: Identity, key: RecordKey = KEY, payload: bytes = b"here") -> Record:
    issued = int(NOW * 1000)
    return make_record(
        signer, key, RecordBody(payload=payload, issued_unix_milliseconds=issued, lifetime_milliseconds=60_000)
    )


def place(key: RecordKey = KEY) -> Any:
    return DHTID.generate(source=key.text)


def verdict(value: bytes, subkey: object, key: RecordKey = KEY, expires: float = NOW + 60) -> bool:
    packed = MSGPackSerializer.dumps(subkey)
    return SignedRecordValidator(RULES).validate(DHTRecord(place(key).to_bytes(), packed, value, expires))


def test_the_validator_accepts_exactly_what_the_signer_filed() -> None:
    value = record(ALICE).value
    assert verdict(value, ALICE.peer_id)
    assert not verdict(value, BOB.peer_id)
    assert not verdict(value, None)
    assert not verdict(value, ALICE.peer_id, key=presence_key(RUN_ID, 1))
    assert not verdict(value, ALICE.peer_id, expires=NOW + 61)
    assert not verdict(value[:-1], ALICE.peer_id)
    assert not verdict(MSGPackSerializer.dumps(value), ALICE.peer_id)


@pytest.mark.parametrize("value", [7, None, [], "text"])
def test_the_validator_refuses_what_is_no_bytes(value: Any) -> None:
    """A dictionary that somebody hands over may hold anything that msgpack knows."""
    assert not verdict(value, ALICE.peer_id)


def test_the_validator_does_not_look_at_the_clock() -> None:
    """One entry at the edge of two clocks must not cost a replica's whole answer."""
    issued = int((NOW - 1_000_000) * 1000)
    body = RecordBody(payload=b"", issued_unix_milliseconds=issued, lifetime_milliseconds=1000)
    assert verdict(make_record(ALICE, KEY, body).value, ALICE.peer_id, expires=(issued + 1000) / 1000)


def test_the_storage_keeps_live_records_only_and_no_plain_values() -> None:
    storage = TableStorage(lambda: NOW)
    value = record(ALICE).value
    assert not storage.store(place(), value, NOW + 60)
    assert storage.get(place()) is None
    assert not storage.store_subkey(place(), BOB.peer_id, value, NOW + 60)
    assert not storage.store_subkey(place(), ALICE.peer_id, value, NOW + 59)
    assert storage.store_subkey(place(), ALICE.peer_id, value, NOW + 60)
    late = TableStorage(lambda: NOW + 60)
    assert not late.store_subkey(place(), ALICE.peer_id, value, NOW + 60)
    early = TableStorage(lambda: NOW - 31)
    assert not early.store_subkey(place(), ALICE.peer_id, value, NOW + 60)


def test_records_that_a_search_merges_into_an_answer_do_not_reach_the_storage() -> None:
    storage = TableStorage(lambda: NOW)
    storage.store_subkey(place(), ALICE.peer_id, record(ALICE).value, NOW + 60)
    storage.get(place()).value.store(BOB.peer_id, b"anything", NOW + 1000)
    assert [sender for sender, _ in storage.get(place()).value.items()] == [ALICE.peer_id]


def test_a_handover_fits_one_message() -> None:
    storage = TableStorage(lambda: NOW)
    for shard in range(8):
        key = presence_key(RUN_ID, shard)
        for number in range(64):
            entry = record(Identity(number.to_bytes(32, "big")), key, bytes(3000))
            assert storage.store_subkey(place(key), entry.sender, entry.value, entry.expires_unix_seconds)
    handed_over = [MSGPackSerializer.dumps(item.value) for _, item in storage.items()]
    assert 1 < len(handed_over) < 8
    assert sum(map(len, handed_over)) < 1.1 * HANDOVER_BYTES_MAX


def test_a_handover_has_no_more_records_than_anybody_takes() -> None:
    storage = TableStorage(lambda: NOW)
    for shard in range(5):
        key = presence_key(RUN_ID, shard)
        for number in range(HANDOVER_RECORDS_MAX // 4):
            storage.table.put(place(key).to_bytes(), unsigned(number, key), NOW)
    assert sum(len(item.value.data) for _, item in storage.items()) == HANDOVER_RECORDS_MAX


def unsigned(number: int, key: RecordKey) -> Record:
    whole = record(ALICE, key, b"")
    return replace(whole, sender=PeerId(f"peer {number}"))


def test_the_records_of_a_packed_dictionary_are_counted() -> None:
    storage = TableStorage(lambda: NOW)
    for identity in (ALICE, BOB):
        storage.store_subkey(place(), identity.peer_id, record(identity).value, NOW + 60)
    assert entries_in(MSGPackSerializer.dumps(storage.get(place()).value)) == 2


def dictionary(content: Any) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(DICTIONARY_CODE, msgpack.packb(content))))


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"", "cannot be read"),
        (b"\xc1", "cannot be read"),
        (b"\x91" * 5000, "cannot be read"),
        (msgpack.packb([None, NOW, []]), "no dictionary"),
        (msgpack.packb(msgpack.ExtType(DICTIONARY_CODE - 1, b"")), "no dictionary"),
        (dictionary([None, NOW]), "cannot be read"),
        (dictionary(7), "cannot be read"),
        (dictionary([None, NOW, {"one": 1}]), "without a list"),
        (dictionary([None, NOW, msgpack.ExtType(DICTIONARY_CODE, b"")]), "within a dictionary"),
        (dictionary([None, NOW, [["key", msgpack.ExtType(DICTIONARY_CODE, b""), NOW]]]), "within a dictionary"),
    ],
)
def test_bytes_that_are_no_plain_dictionary_are_refused(packed: bytes, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        entries_in(packed)
