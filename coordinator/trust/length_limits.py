"""How long a statement may be: what is longer, everybody refuses by its bytes alone.

Bodies may end in fields that we do not know (`dht.wire`). If there were room for any number of bytes, a leader could
say two things that are both acted on, and both too long to be kept or to fit into evidence
(`coordinator.trust.equivocation`).
"""

from __future__ import annotations

from coordinator.trust.statement_slots import nested
from coordinator.wire.messages import BODY_BYTES_MAX
from dht.errors import PeerError
from dht.statement import Statement
from dht.wire import MESSAGE_BYTES_MAX

ENVELOPE_BYTES = 1 << 8  # of a statement beside its body, at most: context, sender and signature
LEADERS_OWN_BYTES_MAX = 5 << 10  # in what holds others' statements: convictions of 32 take 3.3 KB


def check_length(statement: Statement) -> None:
    """Raises PeerError for what is too long, by itself or for what it lists of others."""
    _check_alone(statement)
    if len(statement.body) <= LEADERS_OWN_BYTES_MAX:  # nothing in it is long, and most that is said costs no decoding
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
