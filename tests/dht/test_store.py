from __future__ import annotations

import asyncio

import pytest

from dht.errors import NetworkError
from dht.identity import KeyVerifier
from dht.records import presence_key
from dht.store import RecordWriter
from dht.validation import RecordRules
from tests.dht.conftest import ALICE, BOB, NOW, RUN_ID
from tests.dht.memory_store import MemoryDirectory, MemoryStore

RULES = RecordRules(RUN_ID, KeyVerifier())
KEY = presence_key(RUN_ID)


def test_records_of_one_peer_are_issued_strictly_later_unless_the_clock_was_wrong() -> None:
    writer = RecordWriter(ALICE)
    records = [writer.write(KEY, b"", 9, now) for now in (NOW, NOW, NOW - 5, NOW + 1, NOW - 3600)]
    issued = [record.body.issued_unix_milliseconds - int(NOW * 1000) for record in records]
    assert issued == [0, 1, 2, 1000, -3_600_000]


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
