"""The content of an export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.chain.certificate import Certificate
from coordinator.run.manifest import Manifest
from coordinator.views.credit import CreditReport
from coordinator.views.evaluation import Evaluation
from peer.storage.run_directory import Captured


@dataclass(frozen=True, slots=True)
class Exported:
    """One moment of a run, with the facts that its model card adds."""

    manifest: Manifest
    captured: Captured
    credit: CreditReport
    evaluations: tuple[Evaluation, ...] = ()  # of earlier versions; this and `loss` are the exporter's word
    loss: float | None = None  # of exactly this model on held-out text, nats per token
    licence: str = ""
    tokenizer: bytes | None = None  # the run's tokenizer.json; None for a run over bytes or numbered tokens
    passed: tuple[Sequence[Certificate], ...] = ()  # by fragment, the certificates that stand for older ones

    @property
    def versions(self) -> int:
        """Number of certified versions over all fragments."""
        return sum(self.captured.held)
