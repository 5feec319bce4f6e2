from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import PeerError
from dht.identity import KeyVerifier
from dht.records import (
    RECORD_BYTES_MAX,
    RECORD_KINDS,
    Record,
    RecordBody,
    RecordKey,
    evidence_key,
    make_record,
    parse_record,
    presence_key,
)
from dht.statement import Context, Statement, make_statement
from dht.validation import CLOCK_TOLERANCE_SECONDS, RecordRules
from dht.wire import Wire
from tests.dht.checking import check_record
from tests.dht.conftest import ALICE, BOB, NOW, RUN_ID

RULES = RecordRules(RUN_ID, KeyVerifier())
KEY = presence_key(RUN_ID)


def body(payload: bytes = b"here", issued: float = NOW, lifetime: float = 9.0, work: int = 0) -> RecordBody:
    return RecordBody(
        payload=payload,
        issued_unix_milliseconds=int(issued * 1000),
        lifetime_milliseconds=int(lifetime * 1000),
        work=work,
    )


def reason(record: Record, key: RecordKey = KEY, rules: RecordRules = RULES, now: float = NOW) -> str | None:
    return check_record(key, record.sender, record.value, record.expires_unix_seconds, now, rules)


def forged(context: Context, inner: Wire | None = None) -> Record:
    """A record whose signature is right and whose content is not: only checks can refuse it."""
    statement = make_statement(ALICE, context, inner or body())
    return Record(KEY, ALICE.peer_id, body(), statement, statement.to_wire())


@given(
    st.sampled_from([KEY, presence_key(RUN_ID, 5), evidence_key(RUN_ID)]),
    st.binary(max_size=512),
    st.floats(0.001, 300),
)
def test_an_honest_record_is_accepted(key: RecordKey, payload: bytes, lifetime: float) -> None:
    record = make_record(ALICE, key, body(payload, lifetime=max(lifetime, 0.001)))
    assert reason(record, key) is None
    parsed = parse_record(record.value)
    assert parsed == record
    assert len(record.value) <= RECORD_BYTES_MAX


def test_the_largest_record_of_each_kind_fits() -> None:
    for kind, limits in RECORD_KINDS.items():
        key = RecordKey(RUN_ID, kind, fragment=0xFFFF, shard=4095)
        big = body(bytes(limits.payload_bytes_max), lifetime=limits.lifetime_seconds_max, work=2**63 - 1)
        assert reason(make_record(ALICE, key, big), key) is None
        with pytest.raises(ValueError, match="at most"):
            make_record(ALICE, key, body(bytes(limits.payload_bytes_max + 1)))
    with pytest.raises(ValueError, match="lives at most"):
        make_record(ALICE, KEY, body(lifetime=301))


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (forged(KEY.context.model_copy(update={"group": b"g" * 32})), "group"),
        (forged(KEY.context.model_copy(update={"kind": "vote"})), "no kind of record"),
        (forged(RecordKey(RUN_ID, "heads", fragment=1).context), "no kind of record"),  # as earlier versions wrote
        (forged(KEY.context.model_copy(update={"version": 2**40})), "shard"),
        (forged(KEY.context.model_copy(update={"fragment": 1})), "another key"),
        (forged(KEY.context.model_copy(update={"run_id": b"x" * 32})), "another key"),
        (forged(KEY.context, body(bytes(3073))), "payload"),
        (forged(KEY.context, body(lifetime=301.0)), "lifetime"),
    ],
)
def test_well_signed_nonsense_is_refused(record: Record, why: str) -> None:
    lifetime = 301.0 if why == "lifetime" else 9.0
    said = check_record(KEY, ALICE.peer_id, record.value, NOW + lifetime, NOW, RULES)
    assert said is not None
    assert why in said


def test_a_record_belongs_to_one_key_one_peer_and_one_expiry() -> None:
    record = make_record(ALICE, KEY, body())
    expires = record.expires_unix_seconds
    assert "another key" in str(reason(record, presence_key(RUN_ID, 1)))
    assert "another key" in str(reason(record, evidence_key(RUN_ID)))
    assert "another run" in str(reason(record, rules=replace(RULES, run_id=b"x" * 32)))
    for subkey in (BOB.peer_id, None, 7, ALICE.peer_id.encode()):
        assert "another peer" in str(check_record(KEY, subkey, record.value, expires, NOW, RULES))
    for wrong in (expires + 0.001, expires - 1, float("inf"), float("nan")):
        assert "expiry" in str(check_record(KEY, ALICE.peer_id, record.value, wrong, NOW, RULES))


def test_a_signature_of_another_peer_is_refused() -> None:
    record = make_record(ALICE, KEY, body())
    stolen = record.statement.model_copy(update={"sender": BOB.peer_id}).to_wire()
    assert "signature" in str(check_record(KEY, BOB.peer_id, stolen, record.expires_unix_seconds, NOW, RULES))


@given(st.floats(-400, 400))
def test_time_limits(offset: float) -> None:
    record = make_record(ALICE, KEY, body())
    issued, expires = record.issued_unix_seconds, record.expires_unix_seconds
    now = NOW + offset
    alive = issued <= now + CLOCK_TOLERANCE_SECONDS and now < expires
    assert (reason(record, now=now) is None) == alive


@given(st.data())
def test_a_flipped_byte_is_refused_or_changes_nothing(data: st.DataObject) -> None:
    record = make_record(ALICE, KEY, body())
    value = bytearray(record.value)
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    said = check_record(KEY, ALICE.peer_id, bytes(value), record.expires_unix_seconds, NOW, RULES)
    assert said is not None or Statement.from_wire(bytes(value)) == record.statement


@given(st.binary(max_size=400))
def test_arbitrary_bytes_get_a_reason(value: bytes) -> None:
    assert check_record(KEY, ALICE.peer_id, value, NOW + 9, NOW, RULES)
    with pytest.raises(PeerError):
        parse_record(value)


def test_an_oversized_value_is_refused_before_it_is_decoded() -> None:
    assert "over the limit" in str(check_record(KEY, ALICE.peer_id, bytes(4097), NOW + 9, NOW, RULES))


def test_keys_have_distinct_texts() -> None:
    keys = [
        presence_key(RUN_ID),
        presence_key(RUN_ID, 1),
        evidence_key(RUN_ID),
        RecordKey(RUN_ID, "presence", fragment=1),
        presence_key(b"x" * 32),
    ]
    assert len({key.text for key in keys}) == len(keys)
    assert len({key.context.group for key in keys}) == len(keys)
