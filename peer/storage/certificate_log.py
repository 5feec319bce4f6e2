"""The certificates of one fragment on disk, bounded however long the run is (design §8: checkpoints carry them).

New ones are added before the checkpoint that they prove is written, and whatever branch they are on, so at every moment
the log holds those of the newest whole checkpoint; it is cut back only before something is added. Of what is cut, a few
stay in a file of their own that stand for the rest (`coordinator.chain.skipping`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import CHAIN_KEPT
from coordinator.chain.packed_history import PackedHistory
from coordinator.chain.skipping import skipping
from dht.errors import LocalError
from peer.storage.record_log import VoteLog

RECORDS_MAX = 4 * CHAIN_KEPT  # then the newest CHAIN_KEPT remain


class CertificateLog:
    """A file of certificates, every parent before its child. One process writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = VoteLog(path)
        self._passed = VoteLog(path.with_name(f"{path.name}-passed"))
        self._records: int | None = None  # in the file, once we know
        self._newest: frozenset[bytes] = frozenset()  # digests of what was read or added last

    def read(self, version: int, head: bytes | None, count: int) -> list[Certificate]:
        """At most `count` certificates, oldest first, that end at this version; `head` is its digest, where known.

        Raises LocalError if it is not there.
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
        """Write those that are not there yet; they are on disk when this returns. Raises LocalError.

        Nothing makes room for them: a checkpoint that cannot be written leaves the one before, which needs its own.
        """
        new = [place for place, digest in enumerate(certificates.digests) if digest not in self._newest]
        if not new:
            return
        records = len(self._log.read()) if self._records is None else self._records
        self._log.append(*(certificates[place].to_wire() for place in new))
        self._remember(records + len(new), certificates.digests)

    def cut(self) -> None:
        """The newest are those of a checkpoint that is on disk: of too many, only these stay. Raises LocalError."""
        if (self._records or 0) > RECORDS_MAX:
            records = self._log.read()
            kept = records[-CHAIN_KEPT:]
            newest = _branch(kept, Certificate.from_wire(kept[-1]).digest)
            passed = skipping(self._read_passed(), _branch(records[:-CHAIN_KEPT], newest[0].outcome.parent))
            self._passed.replace([one.to_wire() for one in passed])
            self._log.replace(kept)
            self._records = len(kept)

    def passed(self, head: bytes) -> list[Certificate]:
        """A few that stand for all from version 1 up to the one with this digest; none if they do not go back so far.

        Raises LocalError.
        """
        return skipping(self._read_passed(), _branch(self._log.read(), head))

    def _read_passed(self) -> list[Certificate]:
        return [Certificate.from_wire(data) for data in self._passed.read()]

    def _remember(self, records: int, newest: Iterable[bytes]) -> None:
        self._records, self._newest = records, frozenset(newest)


def _branch(records: Sequence[bytes], head: bytes) -> list[Certificate]:
    """The one with this digest and those that it follows from, oldest first."""
    branch: list[Certificate] = []
    for data in reversed(records):
        one = Certificate.from_wire(data)
        if one.digest == head:
            branch.append(one)
            head = one.outcome.parent
    branch.reverse()
    return branch
