"""Limits on the length of statements: every peer refuses a longer one by its bytes alone.

Bodies may end in fields that we do not know (`dht.wire`). Without a limit, a leader could make two contradicting
statements that peers act on, but that are too long to be kept or to fit into evidence
(`coordinator.trust.equivocation`).
"""

from __future__ import annotations

from coordinator.trust.statement_slots import nested
from coordinator.wire.messages import BODY_BYTES_MAX
from dht.errors import PeerError
from dht.statement import Statement
from dht.wire import MESSAGE_BYTES_MAX

ENVELOPE_BYTES = 1 << 8  # the most that a statement has beside its body: context, sender and signature
LEADERS_OWN_BYTES_MAX = 5 << 10  # of a statement that holds others' statements; 32 convictions take 3.3 KB


def check_length(statement: Statement) -> None:
    """Raise PeerError for a statement that is too long, by itself or for the statements of others that it lists."""
    _check_alone(statement)
    if len(statement.body) <= LEADERS_OWN_BYTES_MAX:  # nothing in it is long; so most statements cost no decoding
        return
    listed = nested(statement)
    for one in listed:
        _check_alone(one)
    if listed and len(statement.body) > LEADERS_OWN_BYTES_MAX + sum(len(one.body) + ENVELOPE_BYTES for one in listed):
        raise PeerError(f"a {statement.context.kind} of {len(statement.body)} bytes, most of them its sender's own")


def _check_alone(statement: Statement) -> None:
    kind = statement.context.kind
    if len(statement.body) > BODY_BYTES_MAX.get(kind, MESSAGE_BYTES_MAX):
        raise PeerError(f"a {kind} of {len(statement.body)} bytes")
