from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import PeerError
from dht.identity import KeyVerifier
from dht.statement import READ_KEPT_BYTES_MAX, Context, Statement, digest_of, make_statement
from dht.wire import MESSAGE_BYTES_MAX, Wire
from tests.dht.conftest import ALICE, BOB, RUN_ID

verifier = KeyVerifier()


class Note(Wire):
    text: str
    blob: bytes = b""


class NoteNext(Note):
    extra: int = 0


CONTEXT = Context(run_id=RUN_ID, kind="note", fragment=3, version=7, group=b"g" * 32)
STATEMENT = make_statement(ALICE, CONTEXT, Note(text="hello"))

contexts = st.builds(
    Context,
    run_id=st.binary(min_size=32, max_size=32),
    kind=st.text("abcdefghij_", min_size=1, max_size=16),
    fragment=st.integers(0, 0xFFFF),
    version=st.integers(0, 2**53),
    group=st.binary(max_size=32),
)


@given(contexts, st.text(max_size=20))
def test_round_trip_verifies(context: Context, text: str) -> None:
    statement = Statement.from_wire(make_statement(ALICE, context, Note(text=text)).to_wire())
    assert statement.verify(verifier)
    assert statement.read(Note).text == text
    assert statement.sender == ALICE.peer_id


def test_a_statement_is_decoded_once_and_what_differs_from_it_anew() -> None:
    """A copy has what its original had decoded, and may have another body; another model reads the same body."""
    statement = Statement.from_wire(STATEMENT.to_wire())
    assert statement.read(Note) is statement.read(Note)
    assert statement.read(NoteNext) == NoteNext(text="hello")
    assert statement.read(Note) == Note(text="hello")
    copied = statement.model_copy(update={"body": Note(text="other").to_wire()})
    assert copied.read(Note) == Note(text="other")
    assert statement == Statement.from_wire(STATEMENT.to_wire()), "what is kept decoded is no field"
    large = make_statement(ALICE, CONTEXT, Note(text="", blob=bytes(READ_KEPT_BYTES_MAX)))
    assert large.read(Note) is not large.read(Note)


@given(contexts)
def test_nothing_can_be_replayed_in_another_context(other: Context) -> None:
    moved = STATEMENT.model_copy(update={"context": other})
    assert moved.verify(verifier) == (other == CONTEXT)


@pytest.mark.parametrize(
    "change",
    [
        {"sender": BOB.peer_id},
        {"body": Note(text="other").to_wire()},
        {"body": STATEMENT.body + b"\x00"},
        {"signature": b""},
        {"signature": STATEMENT.signature[:-1]},
        {"context": CONTEXT.model_copy(update={"fragment": 4})},
        {"context": CONTEXT.model_copy(update={"version": 8})},
        {"context": CONTEXT.model_copy(update={"kind": "other"})},
        {"context": CONTEXT.model_copy(update={"group": b""})},
        {"context": CONTEXT.model_copy(update={"run_id": b"x" * 32})},
    ],
)
def test_tampered_anything_fails_to_verify(change: dict[str, object]) -> None:
    assert STATEMENT.verify(verifier)
    assert not STATEMENT.model_copy(update=change).verify(verifier)


@given(st.integers(0, len(STATEMENT.to_wire()) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_nothing(index: int, flip: int) -> None:
    data = bytearray(STATEMENT.to_wire())
    data[index] ^= flip
    try:
        statement = Statement.from_wire(bytes(data))
    except PeerError:
        return
    assert not statement.verify(verifier) or statement == STATEMENT


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        Statement.from_wire(data)


def test_a_reader_without_a_newer_field_verifies_and_forwards_it_unchanged() -> None:
    statement = make_statement(ALICE, CONTEXT, NoteNext(text="hello", extra=5))
    forwarded = Statement.from_wire(statement.to_wire())
    assert forwarded.read(Note) == Note(text="hello")
    assert forwarded.verify(verifier)
    assert forwarded.read(NoteNext).extra == 5


def test_unknown_trailing_fields_of_the_envelope_are_ignored() -> None:
    fields = msgpack.unpackb(STATEMENT.to_wire())
    statement = Statement.from_wire(msgpack.packb([*fields, "from the future"]))
    assert statement == STATEMENT


def test_the_digest_names_the_statement_without_its_signature() -> None:
    assert STATEMENT.model_copy(update={"signature": b"other"}).digest == STATEMENT.digest
    assert make_statement(BOB, CONTEXT, Note(text="hello")).digest != STATEMENT.digest


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_digests_tell_lists_of_parts_apart(left: list[bytes], right: list[bytes]) -> None:
    assert (digest_of(*left) == digest_of(*right)) == (left == right)


def test_a_body_over_the_limit_is_not_signed() -> None:
    with pytest.raises(PeerError, match="over the limit"):
        make_statement(ALICE, CONTEXT, Note(text="", blob=bytes(MESSAGE_BYTES_MAX)))
