"""Evidence across restarts, on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.chain.certificate import Conviction
from coordinator.trust.bans import Ban
from coordinator.trust.evidence import order_evidence, verify
from coordinator.trust.orders import Order, sign_order
from coordinator.wire.messages import ConvictionsNote
from dht.errors import LocalError
from dht.records import RECORD_KINDS, RecordBody, evidence_key, make_record
from dht.store import StoredRecord
from peer.node.evidence_exchange import HEADS_MAX, STRANGERS_READ_MAX, drawn, heads_at
from peer.storage.evidence_files import EvidenceFiles
from tests.coordinator.builders import Club
from tests.coordinator.trust.test_evidence import CLUB, LIES, PAIRS, contradiction, lie


def ban(name: str, unix_seconds: float) -> Ban:
    evidence = contradiction(*PAIRS[name]) if name in PAIRS else lie(LIES[name])
    return Ban(verify(evidence, CLUB.rules), evidence, unix_seconds)


def test_kept_evidence_is_read_again_oldest_first(tmp_path: Path) -> None:
    shelf = EvidenceFiles(tmp_path / "evidence")
    assert shelf.read() == []
    late, early = ban("vote", 20.5), ban("result", 10.25)
    for one in (late, early):
        shelf.keep(one)
    assert EvidenceFiles(tmp_path / "evidence").read() == [
        (early.evidence.to_wire(), 10.25),
        (late.evidence.to_wire(), 20.5),
    ]


def test_one_file_for_each_key_and_none_half_written(tmp_path: Path) -> None:
    shelf = EvidenceFiles(tmp_path)
    shelf.keep(ban("vote", 1.0))
    shelf.keep(ban("commit", 2.0))  # the same key
    (data,) = shelf.read()
    assert data[1] == 2.0
    (tmp_path / "torn.evidence").write_bytes(b"\x92\xc4")
    assert len(shelf.read()) == 1
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_a_disk_that_refuses_is_said_in_a_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "evidence"
    blocked.write_text("a file where the folder should be")
    with pytest.raises(LocalError, match="cannot be written"):
        EvidenceFiles(blocked).keep(ban("vote", 1.0))


def test_heads_fit_into_a_record() -> None:
    peers = Club.of(HEADS_MAX, real_keys=True)
    convictions = tuple(Conviction(peer=peer, evidence=bytes(32)) for peer in peers.ids)
    heads = ConvictionsNote(convictions=convictions).to_wire()
    assert len(heads) <= RECORD_KINDS["evidence"].payload_bytes_max
    body = RecordBody(payload=heads, issued_unix_milliseconds=1, lifetime_milliseconds=1000)
    record = make_record(peers.signers[0], evidence_key(bytes(32)), body)
    assert ConvictionsNote.from_wire(record.body.payload).convictions[0].peer == peers.ids[0]


def order_ban(number: int, serial: int = 1) -> Ban:
    order = Order(subject=f"{number:046}".replace("0", "z"), revoked=True, serial=serial)
    organiser = CLUB.signers[CLUB.number(CLUB.rules.organiser)]
    evidence = order_evidence(sign_order(organiser, CLUB.rules.run_id, order))
    return Ban(verify(evidence, CLUB.rules), evidence, float(number))


def test_orders_that_hold_no_more_leave_the_disk_and_nothing_else_does(tmp_path: Path) -> None:
    shelf, fault = EvidenceFiles(tmp_path), ban("vote", 1.0)
    orders = [order_ban(number) for number in range(4)]
    for one in (fault, *orders):
        shelf.keep(one)
    shelf.forget_orders(but=orders[2:])
    assert [data for data, _ in shelf.read()] == [one.evidence.to_wire() for one in (fault, *orders[2:])]


@pytest.mark.parametrize("count", [1, HEADS_MAX, 40, 41])
def test_in_turns_a_record_tells_of_all(count: int) -> None:
    held = [order_ban(number) for number in range(count)]
    assert list(heads_at(held, 0)) == held[: -HEADS_MAX - 1 : -1]
    turns = [heads_at(held, turn) for turn in range(-(-count // HEADS_MAX))]
    assert [one for turn in turns for one in turn] == held[::-1]
    assert heads_at(held, len(turns)) == turns[0]


def test_of_the_heads_of_strangers_a_few_are_followed_and_of_those_we_know_all() -> None:
    """Each head makes us ask its sender, and writing a record costs an attacker only a key."""
    ids = Club.of(6 * STRANGERS_READ_MAX).ids
    records = [StoredRecord(peer, b"", 0.0, 1.0) for peer in ids]
    known = frozenset(ids[:5])
    followed = [{record.sender for record in drawn(records, known)} for _ in range(64)]
    assert all(known < one and len(one) == len(known) + STRANGERS_READ_MAX for one in followed)
    assert len({frozenset(one) for one in followed}) > 1
    assert {record.sender for record in drawn(records[:12], known)} == set(ids[:12])
