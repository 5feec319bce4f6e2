"""Every message survives encoding as a frame header; hostile bytes raise only PeerError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.wire.messages import AskChainNote, ChainNote, NeedNote, PartNote
from dht.errors import PeerError
from dht.identity import Identity
from dht.statement import Context, digest_of, make_statement
from peer.net.frames import (
    HeadsAnswer,
    HeadsAsk,
    ManifestAnswer,
    ManifestAsk,
    StateAsk,
    StatePiece,
    StatusAnswer,
    StatusAsk,
    TailAnswer,
    TailAsk,
    decode_header,
    encode_header,
)

DIGEST = digest_of(b"x")
STATEMENT = make_statement(
    Identity(DIGEST),
    Context(run_id=DIGEST, kind="join", fragment=1, version=2, group=DIGEST),
    NeedNote(what="part", group=DIGEST, partition=1, turn=0),
)
MESSAGES = [
    STATEMENT,
    PartNote(group=DIGEST, partition=3, turn=1),
    NeedNote(what="result", group=DIGEST, partition=0, turn=0),
    AskChainNote(fragment=2, version=9, known=(DIGEST, DIGEST)),
    ChainNote(fragment=2, certificates=()),
    StateAsk(fragment=1, certificate=DIGEST, piece=7),
    StatePiece(fragment=1, certificate=DIGEST, piece=7),
    ManifestAsk(),
    ManifestAnswer(manifest=b"bytes"),
    StatusAsk(),
    StatusAnswer(status=b"{}"),
    HeadsAsk(version=9, digest=DIGEST),
    HeadsAnswer(digest=DIGEST, heads=(DIGEST, DIGEST)),
    TailAsk(fragment=2, version=9, head=DIGEST),
    TailAnswer(fragment=2, head=DIGEST, certificates=()),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: object) -> None:
    assert decode_header(encode_header(message)) == message  # type: ignore[arg-type]


@given(st.binary(max_size=300))
def test_hostile_bytes_are_refused_in_words(data: bytes) -> None:
    with contextlib.suppress(PeerError):
        decode_header(data)


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_messages_never_crash(message: object, data: st.DataObject) -> None:
    header = bytearray(encode_header(message))  # type: ignore[arg-type]
    at = data.draw(st.integers(0, len(header) - 1))
    header[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(PeerError):
        decode_header(bytes(header))


def test_kinds_keep_their_numbers() -> None:
    """The first byte is part of the wire format: a new kind goes to the end."""
    assert [encode_header(message)[0] for message in MESSAGES] == [0, 1, 2, *range(4, 12), *range(21, 25)]
