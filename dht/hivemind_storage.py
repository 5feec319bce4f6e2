"""The validator and the storage of hivemind's DHT node, under our own rules and limits.

hivemind's own storage has no limits, loses records (see `dht.table`) and lets any peer shadow a whole key through its
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgpack
from hivemind.dht.crypto import DHTRecord
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import RecordValidatorBase
from hivemind.utils import MSGPackSerializer
from hivemind.utils.timed_storage import ValueWithExpiration

from dht.door import Door
from dht.errors import PeerError
from dht.records import Record, RecordKey, parse_record
from dht.table import ENTRIES_PER_KEY_MAX, RecordTable
from dht.validation import RecordRules, check_form, check_place, check_time

HANDOVER_BYTES_MAX = 1 << 20  # one unary message carries 4 MiB
HANDOVER_RECORDS_MAX = 4 * ENTRIES_PER_KEY_MAX  # their receiver checks all signatures in one go
DICTIONARY_CODE = 0x50  # msgpack's type of hivemind's dictionaries
VERDICTS_KEPT = 2048


class SignedRecordValidator(RecordValidatorBase):  # type: ignore[misc]
    """The check that hivemind makes before it stores a record or believes an answer; independent of the clock."""

    def __init__(self, rules: RecordRules) -> None:
        @lru_cache(maxsize=VERDICTS_KEPT)  # a search meets the same record at every replica
        def acceptable(place: bytes, subkey: bytes, value: bytes, expires_unix_seconds: float) -> bool:
            return _acceptable(place, subkey, value, expires_unix_seconds, rules)

        self._acceptable = acceptable

    def validate(self, record: DHTRecord) -> bool:
        """True if the record belongs under this key and subkey and its signer wrote it."""
        if not isinstance(record.value, bytes):  # in a dictionary it may be any msgpack type
            return False
        return self._acceptable(record.key, record.subkey, record.value, record.expiration_time)


def _acceptable(place: bytes, subkey: bytes, value: bytes, expires_unix_seconds: float, rules: RecordRules) -> bool:
    try:
        record = parse_record(value)
    except PeerError:
        return False
    if place != place_of(record.key).to_bytes() or subkey != MSGPackSerializer.dumps(record.sender):
        return False
    return (check_place(record, record.sender, expires_unix_seconds) or check_form(record, rules)) is None


class TableStorage:
    """Replaces both storages of hivemind's DHT node with one bounded `RecordTable`."""

    def __init__(self, clock: Callable[[], float], door: Door | None = None) -> None:
        self.table = RecordTable()
        self._clock = clock
        self._door = door or Door()

    def store(self, *_: object) -> bool:
        """Refuse a value without a subkey, which is no record."""
        return False

    def store_subkey(self, key: Any, subkey: object, value: bytes, expiration_time: float) -> bool:
        """Keep a record that the validator has passed, if it is live and newer; False if it is refused."""
        now = self._clock()
        record = parse_record(value)
        if check_place(record, subkey, expiration_time) or check_time(record, now):
            return False
        if self._door.refusal(record.sender, record.body.admission or b""):
            return False
        return self.table.put(key.to_bytes(), record, now)

    def get(self, key: Any) -> Any:
        """Return a key's live records as a new dictionary of hivemind's, or None.

        It must be new, because hivemind's searches merge other peers' answers into it.
        """
        return self._dictionary(self.table.get(key.to_bytes(), self._clock()))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield the records to hand over to a node that has just come near, as many as fit one message."""
        left_bytes, left_records = HANDOVER_BYTES_MAX, HANDOVER_RECORDS_MAX
        for place in self.table.places():
            records = self.table.get(place, self._clock())
            left_bytes -= sum(len(record.value) for record in records)
            left_records -= len(records)
            if left_bytes < 0 or left_records < 0:
                return
            if records:
                yield DHTID.from_bytes(place), self._dictionary(records)

    @staticmethod
    def _dictionary(records: list[Record]) -> Any:
        if not records:
            return None
        value = DictionaryDHTValue()
        with value.freeze():
            for record in records:
                value.store(record.sender, record.value, record.expires_unix_seconds)
        return ValueWithExpiration(value, value.latest_expiration_time)


def entries_in(dictionary: bytes) -> int:
    """Count the records that a packed dictionary claims to hold, without hivemind's slow decoding.

    Raises PeerError if it is no plain dictionary: decoding nested ones could cost any amount of time.
    """
    try:
        packed = msgpack.unpackb(dictionary)
        if not isinstance(packed, msgpack.ExtType) or packed.code != DICTIONARY_CODE:
            raise PeerError("no dictionary")
        _, _, items = msgpack.unpackb(packed.data, ext_hook=_refuse_nested, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
        raise PeerError("a dictionary that cannot be read") from None
    if not isinstance(items, list):
        raise PeerError("a dictionary without a list")
    return len(items)


def _refuse_nested(code: int, _: bytes) -> None:
    raise PeerError(f"a value of type {code} within a dictionary")


def place_of(key: RecordKey) -> Any:
    """Return the DHT id under which hivemind files a key."""
    return DHTID.generate(source=key.text)
