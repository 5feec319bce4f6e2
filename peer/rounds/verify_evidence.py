"""Judges evidence in a file with only the manifest of its run: no clock, no network (design §9)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coordinator.chain.chain import Rules
from coordinator.run.manifest import Manifest
from coordinator.trust.evidence import Evidence, Guilt, verify
from dht.errors import LocalError, PeerError, UsageError
from dht.identity import KeyVerifier
from peer.rounds.tensor_proofs import TensorProofChecker
from peer.storage.anchors import layouts_of
from peer.storage.evidence_files import FILE_BYTES_MAX, KeptEvidence


@dataclass(frozen=True, slots=True)
class EvidenceCase:
    """Evidence read from a file, and the id of its run."""

    evidence: Evidence
    run_id: bytes

    @classmethod
    def read(cls, path: Path) -> EvidenceCase:
        """Raises LocalError if the file cannot be read, UsageError if it holds no evidence."""
        try:
            kept = KeptEvidence.from_wire(path.read_bytes(), FILE_BYTES_MAX)
            evidence = Evidence.parse(kept.evidence)
        except OSError as error:
            raise LocalError(f"{path} cannot be read: {error.strerror}") from None
        except PeerError:  # the position of the error would not help anybody
            sentence = "is neither the folder of an export nor a file of evidence, which a peer keeps in run-*/evidence"
            raise UsageError(f"{path} {sentence}") from None
        return cls(evidence, evidence.statements[0].context.run_id)

    def judge(self, manifest: Manifest) -> Guilt:
        """Return who is guilty, and of what; raises LocalError if the evidence proves nothing."""
        proof_checker = TensorProofChecker(layouts_of(manifest.config), manifest.config.outer)
        try:
            return verify(self.evidence, Rules.of(manifest, KeyVerifier()), proof_checker)
        except PeerError as error:
            raise LocalError(f"this proves nothing: {error}") from None
