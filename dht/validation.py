"""Checks that decide which records are believed. Pure functions: None means yes, else the reason why not.

Checks that need the clock are kept apart. hivemind drops a replica's whole answer if one entry in it is refused. A
record that is live by one clock and expired by another must not cause that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dht.door import Door
from dht.identity import Verifier
from dht.records import RECORD_KINDS, Record

CLOCK_TOLERANCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RecordRules:
    """The rules of a store: records of one run with valid signatures, of peers with a pass if the run asks for one."""

    run_id: bytes
    verifier: Verifier
    door: Door = field(default_factory=Door)


def check_place(record: Record, subkey: object, expires_unix_seconds: float) -> str | None:
    """Check that the record is filed under its signer and with the expiry that the signer gave it."""
    if subkey != record.sender:
        return "filed under another peer than its signer"
    if expires_unix_seconds != record.expires_unix_seconds:
        return "expiry differs from the signed one"
    return None


def check_form(record: Record, rules: RecordRules) -> str | None:
    """Check what never changes: run, group, limits, pass and signature, the cheapest first."""
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
    """Check that the record is issued already, within the clocks' tolerance, and not expired."""
    if record.issued_unix_seconds > now_unix_seconds + CLOCK_TOLERANCE_SECONDS:
        return "issued in the future"
    if record.expires_unix_seconds <= now_unix_seconds:
        return "expired"
    return None
