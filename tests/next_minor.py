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
    encoded = next_minor_bytes(body)
    signature = signer.sign(signed_bytes(context, signer.peer_id, encoded))
    return Statement(context=context, sender=signer.peer_id, body=encoded, signature=signature)
