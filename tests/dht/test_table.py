from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dht import table as table_module
from dht.identity import Identity, PeerId
from dht.records import Record, RecordBody, make_record, presence_key
from dht.table import ENTRIES_PER_KEY_MAX, ENTRIES_PER_SENDER_MAX, RecordTable
from tests.dht.conftest import ALICE, BOB, NOW, RUN_ID

KEY = presence_key(RUN_ID)
PLACES = (b"here", b"there")


def record(signer: Identity, issued: float, lifetime: float, payload: bytes = b"") -> Record:
    return make_record(
        signer,
        KEY,
        RecordBody(
            payload=payload,
            issued_unix_milliseconds=int(issued * 1000),
            lifetime_milliseconds=int(lifetime * 1000),
        ),
    )


class TableMachine(RuleBasedStateMachine):
    """Against the contract in one line: the latest issued record of each peer, while it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RecordTable()
        self.newest: dict[tuple[bytes, PeerId], Record] = {}
        self.now = NOW

    @rule(
        place=st.sampled_from(PLACES),
        signer=st.sampled_from([ALICE, BOB]),
        age=st.integers(0, 20),
        lifetime=st.integers(1, 60),
        payload=st.sampled_from([b"", b"x"]),
    )
    def put(self, place: bytes, signer: Identity, age: int, lifetime: int, payload: bytes) -> None:
        candidate = record(signer, self.now - age, lifetime, payload)
        held = self.newest.get((place, signer.peer_id))
        newer = held is None or held.issued_unix_seconds < candidate.issued_unix_seconds
        accepted = self.table.put(place, candidate, self.now)
        assert accepted == (newer or candidate.value == held.value)
        if newer:
            self.newest[place, signer.peer_id] = candidate

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def holds_the_newest_of_each_peer_until_it_expires(self) -> None:
        for place in PLACES:
            expected = [
                r for (where, _), r in self.newest.items() if where == place and r.expires_unix_seconds > self.now
            ]
            assert self.table.get(place, self.now) == sorted(expected, key=lambda r: r.sender)


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_an_older_record_that_expires_first_does_not_take_the_newer_one_along() -> None:
    """hivemind's own storage loses `new` here, at the moment `old` would have expired."""
    table = RecordTable()
    new, old = record(ALICE, NOW, 100), record(ALICE, NOW - 5, 15)
    assert table.put(b"k", new, NOW)
    assert not table.put(b"k", old, NOW)
    assert table.get(b"k", NOW + 50) == [new]


def test_a_bucket_is_capped_and_makes_room_when_records_expire() -> None:
    table = RecordTable()
    crowd = [Identity(number.to_bytes(32, "big")) for number in range(ENTRIES_PER_KEY_MAX)]
    for member in crowd:
        assert table.put(b"k", record(member, NOW, 9), NOW)
    assert not table.put(b"k", record(ALICE, NOW, 9), NOW)
    assert table.put(b"other", record(ALICE, NOW, 9), NOW)
    assert table.put(b"k", record(crowd[0], NOW + 1, 9), NOW)
    assert table.put(b"k", record(ALICE, NOW + 20, 9), NOW + 20)
    assert [r.sender for r in table.get(b"k", NOW + 20)] == [ALICE.peer_id]
    assert len(table) == 1


def test_the_whole_table_is_capped(monkeypatch) -> None:
    monkeypatch.setattr(table_module, "ENTRIES_MAX", 3)
    table = RecordTable()
    assert [table.put(bytes([n]), record(ALICE, NOW, 9), NOW) for n in range(5)] == [True] * 3 + [False] * 2
    assert table.put(b"new", record(ALICE, NOW + 9, 9), NOW + 9)
    assert len(table) == 1
    assert list(table.places()) == [b"new"]


def test_one_key_cannot_fill_the_table_by_writing_everywhere() -> None:
    table = RecordTable()
    assert table.put(b"presence", record(BOB, NOW, 9), NOW)
    for number in range(10 * ENTRIES_PER_SENDER_MAX):
        assert table.put(number.to_bytes(2, "big"), record(ALICE, NOW, 9), NOW)
    assert len(table) == ENTRIES_PER_SENDER_MAX + 1
    assert table.get(b"presence", NOW) != []
    assert table.get((10 * ENTRIES_PER_SENDER_MAX - 1).to_bytes(2, "big"), NOW) != []
    assert table.get(b"\0\0", NOW) == []  # its own, written first


def test_a_place_that_is_written_again_and_again_stays(monkeypatch) -> None:
    monkeypatch.setattr(table_module, "ENTRIES_PER_SENDER_MAX", 2)
    table = RecordTable()
    for second in range(5):
        assert table.put(b"always", record(ALICE, NOW + second, 9), NOW + second)
        assert table.put(bytes([second]), record(ALICE, NOW + second, 9), NOW + second)
    assert table.get(b"always", NOW + 5) != []
    assert len(table) == 2
