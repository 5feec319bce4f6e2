"""All messages survive the wire, and nothing else gets through (design §6.2, §8 protocol versions)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from coordinator.chain.certificate import Certificate, Outcome, Vote
from coordinator.chain.lineage import CHAIN_PAGE_MAX
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.messages import (
    BODY_BYTES_MAX,
    COEFFICIENTS_MAX,
    SEGMENTS_MAX,
    STATEMENT_BODIES,
    AskChainNote,
    CertificateNote,
    ChainNote,
    Commit,
    NeedNote,
    PartNote,
    Result,
)
from coordinator.wire.openings import PARTITIONS_MAX, OpeningNote, OpenNote
from coordinator.wire.presence import Presence
from dht import wire as encoding
from dht.errors import PeerError
from dht.statement import Statement
from dht.wire import MESSAGE_BYTES_MAX, Wire
from tests.coordinator.builders import Club, digest
from tests.coordinator.wire_values import values_of

NOTES: tuple[type[Wire], ...] = (PartNote, NeedNote, OpenNote, OpeningNote, CertificateNote, AskChainNote, ChainNote)
MODELS = tuple({*STATEMENT_BODIES.values(), Vote, *NOTES, Statement, Certificate, Outcome, Presence})
every_model = pytest.mark.parametrize(
    "model",
    sorted(MODELS, key=lambda one: str(one.__name__)),  # type: ignore[attr-defined]
    ids=lambda one: str(one.__name__),
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=12,
)


def unpacked(wire: bytes) -> list[Any]:
    return list(msgpack.unpackb(wire, use_list=False))


@every_model
@settings(max_examples=8)
@given(st.data())
def test_every_message_survives_the_wire(model, data):
    message = data.draw(values_of(model))
    wire = message.to_wire()
    again = model.from_wire(wire)
    assert again == message
    assert again.to_wire() == wire  # one value, one encoding


@every_model
@settings(max_examples=4)
@given(st.data(), st.lists(plain, min_size=1, max_size=2))
def test_fields_of_a_newer_minor_version_are_ignored(model, data, newer):
    message = data.draw(values_of(model))
    fields = unpacked(message.to_wire())
    omitted = [None] * (len(model.model_fields) - len(fields))  # at the end: no longer there, if more follows
    assert model.from_wire(msgpack.packb([*fields, *omitted, *newer])) == message


@every_model
@settings(max_examples=8)
@given(st.data())
def test_an_incoming_message_is_refused_or_well_formed(model, data):
    """Random arrays, and messages with one random value, give PeerError or a value that encodes again."""
    found = data.draw(plain)
    if data.draw(st.booleans()):
        fields = unpacked(data.draw(values_of(model)).to_wire())
        fields[data.draw(st.integers(0, len(fields) - 1))] = found
        found = fields
    try:
        message = model.from_wire(msgpack.packb(found))
    except PeerError:
        return
    assert model.from_wire(message.to_wire()) == message


@every_model
@settings(max_examples=8)
@given(st.binary(max_size=60))
def test_random_bytes_are_refused(model, noise):
    try:
        message = model.from_wire(noise)
    except PeerError:
        return
    assert model.from_wire(message.to_wire()) == message


def bounded_tuples() -> list[tuple[type[Wire], str, int]]:
    """Return every tuple field that is sent, with its limit."""
    found = []
    for model in MODELS:
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            if getattr(field.annotation, "__origin__", None) is tuple:
                limits = [one.max_length for one in field.metadata if hasattr(one, "max_length")]
                assert limits, f"{model.__name__}.{name} has no limit"  # type: ignore[attr-defined]
                found.append((model, name, limits[0]))
    return sorted(found, key=lambda one: (one[0].__name__, one[1]))


@pytest.mark.parametrize(
    ("model", "name", "limit"), bounded_tuples(), ids=lambda one: getattr(one, "__name__", str(one))
)
@settings(max_examples=1)
@given(st.data())
def test_no_tuple_is_longer_than_its_limit(model, name, limit, data):
    message = data.draw(values_of(model).filter(lambda one: getattr(one, name)))
    fields = {field: getattr(message, field) for field in model.model_fields}
    assert model.model_validate(fields) == message
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields | {name: getattr(message, name)[:1] * (limit + 1)})
    assert [(one["loc"], one["type"]) for one in caught.value.errors()] == [((name,), "too_long")]


def test_the_largest_honest_message_fits_the_wire():
    """It is a page of certificates in which 32 members reduced 32 partitions."""
    club = Club.of(32)
    chain = club.chain()
    outcome = club.outcome(chain, range(32))
    whole = outcome.partitions[0]
    certificate = club.certify(chain, range(32), partitions=(whole,) * 32)
    page = ChainNote(fragment=0, certificates=(certificate,) * CHAIN_PAGE_MAX)
    assert len(page.to_wire()) < MESSAGE_BYTES_MAX
    assert ChainNote.from_wire(page.to_wire()) == page


@pytest.mark.parametrize("count", [0, 1, 15, 16])
def test_notes_know_how_long_they_are_and_measure_a_certificate_once(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    club = Club.of(4)
    chain = club.grow(club.chain(), *[range(4)] * max(count, 1))
    note = ChainNote(fragment=0, certificates=chain.after(0, count), oldest=None if count else 300)
    notes: list[ChainNote | CertificateNote] = [note, CertificateNote(certificate=chain.certificates[0])]
    assert [one.encoded_bytes for one in notes] == [len(one.to_wire()) for one in notes]
    encoded: list[type[Wire]] = []
    plain = encoding._plain
    monkeypatch.setattr(encoding, "_plain", lambda value: (encoded.append(type(value)), plain(value))[1])
    again = ChainNote(fragment=0, certificates=note.certificates)
    assert again.encoded_bytes > sum(one.encoded_bytes for one in note.certificates)
    assert encoded == [ChainNote]


def test_the_longest_commitment_and_its_longest_result_are_accepted():
    commit = Commit(
        tokens=2**53,
        steps=2**53,
        window_first=2**53,
        window_count=2**53,
        codec="c" * 16,
        part_roots=(digest(1),) * PARTITIONS_MAX,
        squared_norms=(0.1,) * SEGMENTS_MAX,
        nonce_hashes=(digest(1),) * 2,
        probation=True,
        cell=digest(1),
    )
    assert len(commit.to_wire()) <= BODY_BYTES_MAX["commit"]
    longest = Result(
        partition=PARTITIONS_MAX - 1,
        turn=1,
        root=digest(1),
        included=tuple(range(PEERS_PER_GROUP_MAX)),
        coefficients=(0.1,) * COEFFICIENTS_MAX,
        squared_norms=(0.1,) * SEGMENTS_MAX,
        encoding_error=0.1,
    )
    assert len(longest.to_wire()) <= BODY_BYTES_MAX["result"]


def test_statement_bodies_are_told_apart_by_their_kind():
    """The kind is signed, so a body is never read as another kind, even if two kinds encode alike."""
    club = Club.of(1)
    vote = club.say(0, "vote", Vote(outcome=digest(1), state=digest(2)))
    renamed = vote.model_copy(update={"context": vote.context.model_copy(update={"kind": "abstain"})})
    assert vote.verify(club.verifier)
    assert not renamed.verify(club.verifier)


def test_presence_of_an_older_version_is_read():
    """Fields with a default were added later, or may be left out."""
    before = Presence(
        boot=bytes(16), state="training", steps=1, steps_per_second=1.0, tokens=1, versions=(), heads=(), addresses=()
    )
    fields = unpacked(before.to_wire())
    required = list(Presence.model_fields).index("addresses") + 1
    assert Presence.from_wire(msgpack.packb(fields[:required])) == before
    with pytest.raises(PeerError, match="addresses"):
        Presence.from_wire(msgpack.packb(fields[: required - 1]))
