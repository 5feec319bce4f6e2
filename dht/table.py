"""A table of records: the newest of each peer at each place, until it expires. Pure and bounded.

It replaces hivemind's `TimedStorage`, which has no limits. That one also loses a record when an older one of the same
peer, which it has refused, would have expired.
"""

from __future__ import annotations

from collections.abc import Iterator

from dht.identity import PeerId
from dht.records import Record

ENTRIES_PER_KEY_MAX = 256
ENTRIES_MAX = 16384  # 64 MiB of the largest records
ENTRIES_PER_SENDER_MAX = 16  # a peer writes to a few places, and to others as the swarm grows; places cost nothing
SWEEP_SECONDS = 1.0


class RecordTable:
    """Records that the caller has checked. A place is any bytes by which the caller looks a key up."""

    def __init__(self) -> None:
        self._places: dict[bytes, dict[PeerId, Record]] = {}
        self._places_of: dict[PeerId, dict[bytes, None]] = {}  # the place written to longest ago comes first
        self._entries = 0
        self._swept_unix_seconds = float("-inf")

    def put(self, place: bytes, record: Record, now_unix_seconds: float) -> bool:
        """Keep `record` if there is room and it is newer than its sender's one at `place`; True if it is held now.

        Beyond `ENTRIES_PER_SENDER_MAX` it replaces the record that its sender wrote longest ago.
        """
        held = self._places.get(place, {}).get(record.sender)
        if held is not None:
            if held.value == record.value:
                return True
            if held.body.issued_unix_milliseconds >= record.body.issued_unix_milliseconds:
                return False
        elif not self._make_room(place, now_unix_seconds):
            return False
        else:
            self._entries += 1
        self._places.setdefault(place, {})[record.sender] = record
        own = self._places_of.setdefault(record.sender, {})
        own.pop(place, None)
        own[place] = None
        if len(own) > ENTRIES_PER_SENDER_MAX:
            self._forget(next(iter(own)), record.sender)
        return True

    def get(self, place: bytes, now_unix_seconds: float) -> list[Record]:
        """Return the live records of a place, ordered by sender."""
        records = self._places.get(place, {}).values()
        return sorted((r for r in records if r.expires_unix_seconds > now_unix_seconds), key=lambda r: r.sender)

    def places(self) -> Iterator[bytes]:
        """Iterate over all places that hold a record, perhaps an expired one."""
        return iter(tuple(self._places))

    def __len__(self) -> int:
        return self._entries

    def _make_room(self, place: bytes, now_unix_seconds: float) -> bool:
        if not self._is_full(place):
            return True
        if now_unix_seconds >= self._swept_unix_seconds + SWEEP_SECONDS:
            self._sweep(now_unix_seconds)
        return not self._is_full(place)

    def _is_full(self, place: bytes) -> bool:
        return self._entries >= ENTRIES_MAX or len(self._places.get(place, {})) >= ENTRIES_PER_KEY_MAX

    def _sweep(self, now_unix_seconds: float) -> None:
        self._swept_unix_seconds = now_unix_seconds
        for place, records in tuple(self._places.items()):
            for sender in [one for one, record in records.items() if record.expires_unix_seconds <= now_unix_seconds]:
                self._forget(place, sender)

    def _forget(self, place: bytes, sender: PeerId) -> None:
        del self._places[place][sender], self._places_of[sender][place]
        if not self._places[place]:
            del self._places[place]
        if not self._places_of[sender]:
            del self._places_of[sender]
        self._entries -= 1
