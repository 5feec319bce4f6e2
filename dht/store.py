"""The port of the record store. Its implementations, over hivemind and in memory for tests, share one contract test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dht.identity import PeerId, Signer
from dht.records import Record, RecordBody, RecordKey, make_record
from dht.validation import CLOCK_TOLERANCE_SECONDS


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One peer's live record under a key. The signature has been verified; the payload is whatever the peer wrote."""

    sender: PeerId
    payload: bytes
    issued_unix_seconds: float
    expires_unix_seconds: float


class RecordStore(Protocol):
    """An untrusted meeting place (design §6.1): it helps to find peers and to time things, and certifies nothing.

    **Expiry.** A record is readable from `put` until `lifetime_seconds` later on the reader's clock, never longer.
    Clocks may differ by up to 30 s, which shifts that time. A later `put` of the same peer under the same key replaces
    the record at once, whatever the two lifetimes; an older one that arrives late changes nothing. Replicas may lose
    records when peers leave, so put a record again well before it expires if it is to stay readable.
    """

    async def put(self, key: RecordKey, payload: bytes, lifetime_seconds: float) -> None:
        """Publish `payload` under `key` as this peer; raises NetworkError if no other peer took it though some exist.

        Raises ValueError if payload or lifetime are over the limits of the key's kind.
        """
        ...

    async def get(self, key: RecordKey) -> list[StoredRecord]:
        """Return the valid, live records under `key`: one per sender, ordered by it, at most `ENTRIES_PER_KEY_MAX`.

        Raises NetworkError if no other peer answered though some exist.
        """
        ...

    async def close(self) -> None:
        """Stop taking part; safe to call twice."""
        ...


class RecordWriter:
    """Makes this peer's records, each issued strictly later than the last."""

    def __init__(self, signer: Signer, shown: bytes = b"") -> None:
        self._signer = signer
        self._shown = shown  # our pass
        self._issued_unix_milliseconds = 0

    def write(self, key: RecordKey, payload: bytes, lifetime_seconds: float, now_unix_seconds: float) -> Record:
        """Return a signed record issued now; raises ValueError if it is over the limits."""
        body = RecordBody(
            payload=payload,
            issued_unix_milliseconds=self._next_issue(int(now_unix_seconds * 1000)),
            lifetime_milliseconds=round(lifetime_seconds * 1000),
            admission=self._shown or None,
        )
        return make_record(self._signer, key, body)

    def _next_issue(self, now_unix_milliseconds: int) -> int:
        """Return an issue time later than the last one.

        If the last one was so far ahead that every peer refused it, our clock was wrong: return the present time.
        """
        last = self._issued_unix_milliseconds
        if last <= now_unix_milliseconds + CLOCK_TOLERANCE_SECONDS * 1000:
            now_unix_milliseconds = max(now_unix_milliseconds, last + 1)
        self._issued_unix_milliseconds = now_unix_milliseconds
        return now_unix_milliseconds


def stored(record: Record) -> StoredRecord:
    """Return a reader's view of a record that was checked."""
    return StoredRecord(record.sender, record.body.payload, record.issued_unix_seconds, record.expires_unix_seconds)
