"""What a next minor version of the protocol would send: a field more wherever one may be appended (CONTRIBUTING.md)."""

from __future__ import annotations

from typing import Any

import msgpack

from dht.identity import Signer
from dht.statement import Context, Statement, signed_bytes
from dht.wire import Wire
from tests.coordinator.fixed_fields import FIXED_FIELDS

APPENDED: tuple[object, ...] = (None, 7, -1.5, b"later", "später", [], [1, [b"x", None]], True)


def next_minor(value: Any) -> Any:
    """What the next minor version sends of a value: one field more wherever one may be, also if it says nothing."""
    if isinstance(value, tuple):
        return [next_minor(item) for item in value]
    if not isinstance(value, Wire):
        return value
    if type(value) in FIXED_FIELDS:
        return msgpack.unpackb(value.to_wire(), use_list=True)
    fields = [next_minor(getattr(value, name)) for name in type(value).model_fields]
    return [*fields, APPENDED[len(fields) % len(APPENDED)]]


def next_minor_bytes(value: Wire) -> bytes:
    return bytes(msgpack.packb(next_minor(value), use_bin_type=True))


def next_minor_statement(signer: Signer, context: Context, body: Wire) -> Statement:
    """As `dht.statement.make_statement`, with the body that the next minor version writes."""
    return make_signed(signer, context, next_minor_bytes(body))


def padded(signer: Signer, statement: Statement, body_bytes: int, fill: int = 0) -> Statement:
    """The same, with a field at the end that nobody knows, so long that its body has this many bytes."""
    fields = msgpack.unpackb(statement.body, raw=False)
    room = body_bytes - len(statement.body)
    head = 2 if room < 1 << 8 else 3 if room < 1 << 16 else 5  # bytes before those of the field itself
    body = bytes(msgpack.packb([*fields, bytes([fill]) * (room - head)], use_bin_type=True))
    return make_signed(signer, statement.context, body)


def make_signed(signer: Signer, context: Context, body: bytes) -> Statement:
    """Signed as the bytes are."""
    signature = signer.sign(signed_bytes(context, signer.peer_id, body))
    return Statement(context=context, sender=signer.peer_id, body=body, signature=signature)
