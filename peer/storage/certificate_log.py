"""The certificates of one fragment on disk, bounded however long the run is (design §8: checkpoints carry them).

New certificates are added before the checkpoint that they prove is written, whatever their branch. So the log always
holds those of the newest complete checkpoint; it is cut only after a checkpoint is on disk. Of the certificates cut
off, a few stay in a file of their own, for skipping verification (`coordinator.chain.skipping`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import CHAIN_KEPT
from coordinator.chain.packed_history import PackedHistory
from coordinator.chain.skipping import skipping
from dht.errors import LocalError
from peer.storage.record_log import RecordLog

RECORDS_MAX = 4 * CHAIN_KEPT  # beyond this, the newest CHAIN_KEPT remain


class CertificateLog:
    """A file of certificates, every parent before its child. One process writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = RecordLog(path)
        self._passed = RecordLog(path.with_name(f"{path.name}-passed"))
        self._records: int | None = None  # in the file, once known
        self._newest: frozenset[bytes] = frozenset()  # digests of those last read or added

    def read(self, version: int, head: bytes | None, count: int) -> list[Certificate]:
        """Return at most `count` certificates, oldest first, that end at this version; `head` is its digest, if known.

        Raises LocalError if it is missing.
        """
        found: list[Certificate] = []
        records = self._log.read()
        for data in reversed(records):
            one = Certificate.from_wire(data)
            if one.digest == head if head is not None else one.version == version:
                found.append(one)
                head = one.outcome.parent
                if one.version == 1 or len(found) == count:
                    break
        if not found or found[0].version != version:
            raise LocalError(f"the certificates in {self._path} do not include version {version}")
        found.reverse()
        self._remember(len(records), (one.digest for one in found))
        return found

    def add(self, certificates: PackedHistory) -> None:
        """Write the certificates that are missing; they are on disk when this returns. Raises LocalError.

        Adding never drops others: if the checkpoint cannot be written, the one before still needs its own certificates.
        """
        new = [place for place, digest in enumerate(certificates.digests) if digest not in self._newest]
        if not new:
            return
        records = len(self._log.read()) if self._records is None else self._records
        self._log.append(*(certificates[place].to_wire() for place in new))
        self._remember(records + len(new), certificates.digests)

    def cut(self) -> None:
        """Cut a log that is too long, keeping the newest, whose checkpoint is on disk. Raises LocalError."""
        if (self._records or 0) > RECORDS_MAX:
            records = self._log.read()
            kept = records[-CHAIN_KEPT:]
            newest = _branch(kept, Certificate.from_wire(kept[-1]).digest)
            passed = skipping(self._read_passed(), _branch(records[:-CHAIN_KEPT], newest[0].outcome.parent))
            self._passed.replace([one.to_wire() for one in passed])
            self._log.replace(kept)
            self._records = len(kept)

    def passed(self, head: bytes) -> list[Certificate]:
        """Return a few certificates for skipping verification from version 1 to the one with this digest.

        Returns none if they do not go back to version 1. Raises LocalError.
        """
        return skipping(self._read_passed(), _branch(self._log.read(), head))

    def _read_passed(self) -> list[Certificate]:
        return [Certificate.from_wire(data) for data in self._passed.read()]

    def _remember(self, records: int, newest: Iterable[bytes]) -> None:
        self._records, self._newest = records, frozenset(newest)


def _branch(records: Sequence[bytes], head: bytes) -> list[Certificate]:
    """Return the certificate with this digest and its ancestors, oldest first."""
    branch: list[Certificate] = []
    for data in reversed(records):
        one = Certificate.from_wire(data)
        if one.digest == head:
            branch.append(one)
            head = one.outcome.parent
    branch.reverse()
    return branch
