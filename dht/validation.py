"""Which records are believed. Pure functions; None means yes, otherwise the reason why not.

What does not depend on the clock is kept apart: hivemind drops a replica's whole answer if one entry in it is refused,
so a record at the edge of two clocks must not decide there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dht.door import Door
from dht.identity import Verifier
from dht.records import RECORD_KINDS, Record

CLOCK_TOLERANCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RecordRules:
    """What a store believes: records of one run, of peers with a pass if it asks for one, whose signatures verify."""

    run_id: bytes
    verifier: Verifier
    door: Door = field(default_factory=Door)


def check_place(record: Record, subkey: object, expires_unix_seconds: float) -> str | None:
    """Filed under its signer, and no longer than its signer said."""
    if subkey != record.sender:
        return "filed under another peer than its signer"
    if expires_unix_seconds != record.expires_unix_seconds:
        return "expiry differs from the signed one"
    return None


def check_form(record: Record, rules: RecordRules) -> str | None:
    """What is true or false for ever: run, group, limits and signature, the cheapest first."""
    limits = RECORD_KINDS[record.key.kind]
    if record.key.run_id != rules.run_id:
        return "belongs to another run"
    if record.statement.context != record.key.context:
        return "group does not match the key"
    if len(record.body.payload) > limits.payload_bytes_max:
        return f"payload of {len(record.body.payload)} bytes is over the limit of {limits.payload_bytes_max}"
    if record.body.lifetime_milliseconds > limits.lifetime_seconds_max * 1000:
        return f"lifetime is over the limit of {limits.lifetime_seconds_max} seconds"
    if not rules.door.proves(record.sender, record.body.admission or b""):
        return "its sender has no pass"
    return None if record.statement.verify(rules.verifier) else "signature does not verify"


def check_time(record: Record, now_unix_seconds: float) -> str | None:
    """Issued already, as far as clocks can tell, and not expired."""
    if record.issued_unix_seconds > now_unix_seconds + CLOCK_TOLERANCE_SECONDS:
        return "issued in the future"
    if record.expires_unix_seconds <= now_unix_seconds:
        return "expired"
    return None
