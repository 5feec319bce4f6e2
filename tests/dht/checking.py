"""All that `dht.validation` asks of a record, at once: hivemind's store asks it in two places."""

from __future__ import annotations

from dht.errors import PeerError
from dht.records import RecordKey, parse_record
from dht.validation import RecordRules, check_form, check_place, check_time


def check_record(
    key: RecordKey,
    subkey: object,
    value: bytes,
    expires_unix_seconds: float,
    now_unix_seconds: float,
    rules: RecordRules,
) -> str | None:
    """None for a record in the right place, well formed, signed by the peer it is filed under, and alive now."""
    try:
        record = parse_record(value)
    except PeerError as error:
        return str(error)
    if record.key != key:
        return "signed for another key"
    return (
        check_place(record, subkey, expires_unix_seconds)
        or check_time(record, now_unix_seconds)
        or check_form(record, rules)
    )
