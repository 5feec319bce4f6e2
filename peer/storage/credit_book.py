"""A peer's record of credit on disk: totals of certificates that are no longer kept, and the names of contributors.

Beside the record is the report as of the last checkpoint, for use while no peer runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog
from pydantic import BaseModel, Field, ValidationError

from coordinator.chain.chain import Chain
from coordinator.views.credit import (
    CONTRIBUTORS_MAX,
    RECORD_BYTES_MAX,
    ContributorName,
    CreditRecord,
    CreditReport,
    report_of,
)
from coordinator.wire.presence import NAME_CHARACTERS_MAX, Presence
from dht.errors import LocalError, PeerError
from dht.files import write_whole
from dht.identity import PeerId
from peer.machine.text import plain

log = structlog.get_logger(__name__)

CREDIT_FILE = "credit.json"


class CreditFile(BaseModel):
    """The file's contents; `record` is the canonical encoding of a CreditRecord, in hex."""

    record: str = Field(max_length=2 * RECORD_BYTES_MAX)
    claims: dict[str, tuple[str, str]] = Field(max_length=CONTRIBUTORS_MAX)
    report: CreditReport


class CreditBook:
    """One run's credit, in this folder. If damaged or missing it starts afresh, and reports say since which version."""

    def __init__(self, folder: Path, run_id: bytes, fragments: int) -> None:
        self._path = folder / CREDIT_FILE
        self._run_id = run_id
        self._record = CreditRecord.empty(fragments)
        self._claims: dict[str, ContributorName] = {}
        self._contributors: frozenset[str] = frozenset()  # in the newest report on disk
        try:
            self._load(fragments)
        except (LocalError, PeerError, ValueError) as error:
            log.warning("credit_begins_anew", reason=str(error))

    def _load(self, fragments: int) -> None:
        if not self._path.exists():
            return
        saved = _read(self._path)
        record = CreditRecord.from_wire(bytes.fromhex(saved.record), RECORD_BYTES_MAX)
        if saved.report.run_id != self._run_id.hex() or len(record.reaches) != fragments:
            raise LocalError(f"{self._path} is of another run")
        self._record = record
        self._claims = {peer: ContributorName(name, team) for peer, (name, team) in saved.claims.items()}
        self._contributors = frozenset(self._claims)

    def hear(self, said: Iterable[tuple[PeerId, Presence]]) -> None:
        """Remember the names that these peers use; of other peers, only those of contributors."""
        self._claims = {peer: claim for peer, claim in self._claims.items() if peer in self._contributors}
        for peer, presence in said:
            name, team = (plain(text)[:NAME_CHARACTERS_MAX] for text in (presence.name, presence.team))
            if name or team:
                self._claims[peer] = ContributorName(name, team)

    def report(self, chains: Sequence[Chain]) -> CreditReport:
        """Return the credit up to the newest versions of these chains."""
        return report_of(self._run_id, self._record, chains, self._claims)

    def save(self, chains: Sequence[Chain]) -> None:
        """Count the certificates that these chains will drop, and write the file; on LocalError the old one remains."""
        self._record = self._record.settled(chains)
        report = self.report(chains)
        self._contributors = frozenset(one.peer_id for one in report.contributors)
        saved = CreditFile(
            record=self._record.to_wire().hex(),
            claims={
                peer: (claim.name, claim.team) for peer, claim in self._claims.items() if peer in self._contributors
            },
            report=report,
        )
        try:
            write_whole(self._path, saved.model_dump_json().encode())
        except OSError as error:
            raise LocalError(f"{self._path} cannot be written: {error.strerror}") from None


def saved_report(folder: Path) -> CreditReport:
    """Return the credit as of the last checkpoint in the folder of a run; raises LocalError if there is none."""
    path = folder / CREDIT_FILE
    if not path.exists():
        raise LocalError(f"{folder} holds no credit yet; wait until the peer has saved a checkpoint")
    return _read(path).report


def _read(path: Path) -> CreditFile:
    try:
        return CreditFile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise LocalError(f"{path} cannot be read, or is damaged; move it away, and credit begins anew") from None
