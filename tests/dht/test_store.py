from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dht import store as store_module
from dht.errors import NetworkError
from dht.identity import KeyVerifier
from dht.records import evidence_key, presence_key
from dht.store import RecordWriter
from dht.validation import RecordRules
from tests.dht.checking import check_record
from tests.dht.conftest import ALICE, BOB, NOW, RUN_ID
from tests.dht.memory_store import MemoryDirectory, MemoryStore

RULES = RecordRules(RUN_ID, KeyVerifier())
KEY = presence_key(RUN_ID)


def test_records_of_one_peer_are_issued_strictly_later_unless_the_clock_was_wrong() -> None:
    writer = RecordWriter(ALICE, work_bits=0)

    async def scenario() -> list[int]:
        records = [await writer.write(KEY, b"", 9, now) for now in (NOW, NOW, NOW - 5, NOW + 1, NOW - 3600)]
        return [record.body.issued_unix_milliseconds - int(NOW * 1000) for record in records]

    assert asyncio.run(scenario()) == [0, 1, 2, 1000, -3_600_000]


def test_work_is_found_once_per_key_and_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    search = store_module.find_work
    monkeypatch.setattr(store_module, "find_work", lambda key, *rest: searched.append(key.kind) or search(key, *rest))
    writer, rules = RecordWriter(ALICE, work_bits=6), replace(RULES, work_bits=6)

    async def scenario() -> None:
        for key, now in ((KEY, NOW), (KEY, NOW + 60), (evidence_key(RUN_ID), NOW + 60), (KEY, NOW + 3600)):
            record = await writer.write(key, b"x", 9, now)
            expires = record.expires_unix_seconds
            assert check_record(key, ALICE.peer_id, record.value, expires, now, rules) is None

    asyncio.run(scenario())
    assert searched == ["presence", "evidence", "presence"]


def test_a_directory_refuses_what_its_rules_refuse() -> None:
    directory = MemoryDirectory(RULES, lambda: NOW)
    store = MemoryStore(directory, ALICE)
    with pytest.raises(NetworkError, match="another run"):
        asyncio.run(store.put(presence_key(b"x" * 32), b"", 9))


def test_a_peer_that_is_cut_off_comes_back() -> None:
    directory = MemoryDirectory(RULES, lambda: NOW)
    alice, bob = MemoryStore(directory, ALICE), MemoryStore(directory, BOB)

    async def scenario() -> None:
        directory.cut_off(ALICE.peer_id)
        with pytest.raises(NetworkError):
            await alice.put(KEY, b"", 9)
        assert await bob.get(KEY) == []
        directory.reconnect(ALICE.peer_id)
        await alice.put(KEY, b"back", 9)
        assert [record.payload for record in await bob.get(KEY)] == [b"back"]

    asyncio.run(scenario())
