"""A record store inside one process: under the same contract as the real one."""

from __future__ import annotations

from collections.abc import Callable

from dht.errors import NetworkError
from dht.identity import PeerId, Signer
from dht.records import RecordKey
from dht.store import RecordWriter, StoredRecord, stored
from dht.table import RecordTable
from dht.validation import RecordRules
from tests.dht.checking import check_record


class MemoryDirectory:
    """The network that several `MemoryStore`s share. `clock` gives Unix seconds, virtual or real."""

    def __init__(self, rules: RecordRules, clock: Callable[[], float]) -> None:
        self.rules = rules
        self.clock = clock
        self.table = RecordTable()
        self._cut_off: set[PeerId] = set()

    def cut_off(self, peer_id: PeerId) -> None:
        """From now on nobody answers this peer."""
        self._cut_off.add(peer_id)

    def reconnect(self, peer_id: PeerId) -> None:
        """Undo `cut_off`."""
        self._cut_off.discard(peer_id)

    def check_reachable(self, peer_id: PeerId) -> None:
        """Raises NetworkError for a peer that is cut off."""
        if peer_id in self._cut_off:
            raise NetworkError("no other peer answers")


class MemoryStore:
    """One peer's view of a `MemoryDirectory`; see `RecordStore` for the contract."""

    def __init__(self, directory: MemoryDirectory, signer: Signer) -> None:
        self._directory = directory
        self._peer_id = signer.peer_id
        self._writer = RecordWriter(signer)

    async def put(self, key: RecordKey, payload: bytes, lifetime_seconds: float) -> None:
        directory = self._directory
        now = directory.clock()
        record = self._writer.write(key, payload, lifetime_seconds, now)
        directory.check_reachable(self._peer_id)
        reason = check_record(key, self._peer_id, record.value, record.expires_unix_seconds, now, directory.rules)
        if reason is not None or not directory.table.put(key.text.encode(), record, now):
            raise NetworkError(f"no other peer took the record: {reason or 'they hold a newer one or have no room'}")

    async def get(self, key: RecordKey) -> list[StoredRecord]:
        directory = self._directory
        directory.check_reachable(self._peer_id)
        return [stored(record) for record in directory.table.get(key.text.encode(), directory.clock())]

    async def close(self) -> None:
        self._directory.cut_off(self._peer_id)
