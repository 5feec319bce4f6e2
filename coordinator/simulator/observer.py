"""An observer of a world's peers: it sees every certificate once, and every line that a core tells."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Adopt, FetchState, Send, Tell, VersionCertified
from coordinator.wire.messages import CertificateNote

if TYPE_CHECKING:
    from coordinator.simulator.peer import VirtualPeer


@dataclass(slots=True)
class EventCounter:
    """A counter of events that judges nothing; `coordinator.simulator.invariants.Watcher` also judges."""

    full: dict[tuple[int, bytes], Certificate] = field(default_factory=dict)  # by fragment and parent
    certified: dict[bytes, Certificate] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    forks: int = 0

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        """Count one action before it is carried out."""
        if isinstance(action, Send):
            if isinstance(action.message, CertificateNote):
                self.meet(action.message.certificate)
        elif isinstance(action, FetchState | Adopt | VersionCertified):
            self.meet(action.certificate)
        elif isinstance(action, Tell):
            self.told[action.event] += 1

    def meet(self, certificate: Certificate) -> bool:
        """Count a certificate, and a fork if its parent has another full version; return True the first time."""
        if certificate.digest in self.certified:
            return False
        self.certified[certificate.digest] = certificate
        outcome = certificate.outcome
        if not outcome.minor:
            known = self.full.setdefault((outcome.fragment, outcome.parent), certificate)
            self.forks += known is not certificate
        return True

    def lineage(self, chain: Chain) -> list[Certificate]:
        """Return all certificates up to a chain's newest one, newest first, even those that peers no longer keep."""
        found: list[Certificate] = []
        digest = chain.digest
        while digest != chain.genesis:
            found.append(self.certified[digest])
            digest = found[-1].outcome.parent
        return found

    def handled(self, peer: VirtualPeer) -> None:
        """Look at a peer after an event."""
