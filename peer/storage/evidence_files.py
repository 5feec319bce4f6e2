"""Evidence on disk: one file for each convicted key, so that a ban outlives the process that pronounced it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import structlog
from pydantic import Field

from coordinator.trust.bans import BANS_MAX, Ban
from coordinator.trust.evidence import EVIDENCE_BYTES_MAX
from coordinator.trust.orders import ORDERS_MAX
from dht.errors import LocalError, PeerError
from dht.files import write_whole
from dht.wire import Wire

log = structlog.get_logger(__name__)

FILE_BYTES_MAX = EVIDENCE_BYTES_MAX + 1024
SUFFIX = ".evidence"


class KeptEvidence(Wire):
    """The contents of one file. It is verified whenever it is read."""

    evidence: bytes = Field(max_length=EVIDENCE_BYTES_MAX)
    learnt_unix_milliseconds: int = Field(ge=0, le=2**53)


class EvidenceFiles:
    """The folder of a run's evidence. Only one process writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> list[tuple[bytes, float]]:
        """Return all evidence with the Unix time at which it was learnt, oldest first; skips damaged files."""
        found = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}"))[: 2 * BANS_MAX + ORDERS_MAX]:
            try:
                kept = KeptEvidence.from_wire(path.read_bytes(), FILE_BYTES_MAX)
            except (OSError, PeerError) as error:
                log.warning("evidence_unreadable", file=path.name, reason=str(error))
                continue
            found.append((kept.evidence, kept.learnt_unix_milliseconds / 1000))
        return sorted(found, key=lambda one: one[1])

    def keep(self, ban: Ban) -> None:
        """Write the evidence for a ban, whole or not at all; raises LocalError."""
        kept = KeptEvidence(
            evidence=ban.evidence.to_wire(), learnt_unix_milliseconds=max(0, int(ban.unix_seconds * 1000))
        )
        path = self._path(ban)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, kept.to_wire())
        except OSError as error:
            raise LocalError(f"the evidence cannot be written to {path}: {error.strerror}") from None

    def forget_orders(self, but: Iterable[Ban]) -> None:
        """Remove all orders but these: otherwise a peer that may give orders could fill the disk."""
        kept = {self._path(ban) for ban in but}
        for path in self._folder.glob(f"*.*{SUFFIX}"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def _path(self, ban: Ban) -> Path:
        issued = ban.guilt.issued  # of each issuer the latest order about a key is kept
        return self._folder / f"{ban.guilt.peer}{'' if issued is None else f'.{issued.issuer}'}{SUFFIX}"
