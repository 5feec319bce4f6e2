"""Sums for people to look at: certified work, and events. Nothing here decides anything."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.chain.lineage import last_shared
from coordinator.core.actions import Adopt, Tell
from coordinator.engine.fragment import FragmentMachine
from coordinator.views.credit import Credit
from coordinator.views.network_view import AuditView
from coordinator.views.snapshot import CertifiedWork
from peer.rounds.audit_views import AUDITS_TOLD_MAX, audit_views

log = structlog.get_logger(__name__)

Kept = Literal["checkpoint", "vote", "export"]
_REFUSALS: dict[Kept, str] = {
    "checkpoint": "checkpoint_failed",
    "vote": "vote_not_written",
    "export": "export_failed",
}  # their names in events and logs
DELAYS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Booked:
    """The part of a fragment's chain that is in the sums: its versions after `first`, up to `last`."""

    chain: Chain
    first: int
    last: int

    def is_all_of(self, chain: Chain) -> bool:
        """Whether the chain has not changed; asked after every event, so it must be cheap."""
        return chain is self.chain and chain.version == self.last

    def fork(self, chain: Chain) -> int:
        """Return the newest of these versions that is also in `chain`, as far as can be told."""
        shared = self.last if chain is self.chain else last_shared(self.chain, chain)
        return max(self.first, self.last if shared is None else min(shared, self.last))


class RunCounters:
    """Certificates and events since this process started."""

    def __init__(self, fragments: int) -> None:
        self.certified = CertifiedWork()
        self.credit = Credit(fragments)
        self._booked: dict[int, Booked] = {}  # by fragment
        self.events: Counter[str] = Counter()
        self.clock_ahead_seconds = 0.0  # of other peers' clocks, at the last check
        self.slow_step_seconds: float | None = None  # duration of our steps where that is longer than rounds wait
        self.hang_seconds: float | None = None  # time without a learner step, while it hangs
        self.refused: dict[Kept, str] = {}  # why something could not be written at the last try
        self.delays_steps: deque[int] = deque(maxlen=DELAYS_KEPT)
        self.audits: deque[AuditView] = deque(maxlen=AUDITS_TOLD_MAX)

    def refuse(self, what: Kept, reason: str) -> None:
        """Record that this could not be written; the owner sees it until `take`."""
        self.events[_REFUSALS[what]] += 1
        self.refused[what] = reason
        log.error(_REFUSALS[what], reason=reason)

    def take(self, what: Kept) -> None:
        """Record that this has been written."""
        self.refused.pop(what, None)

    def tell(self, action: Tell, unix_seconds: float) -> None:
        self.events[action.event] += 1
        self.audits += audit_views(action, unix_seconds)

    def follow(self, machines: Sequence[FragmentMachine]) -> None:
        """Count every certificate that has joined a chain, however it arrived; the first call sets the starting point.

        Versions of an abandoned branch are subtracted, because its peers bring their work again (docs/adr/0027).
        """
        for machine in machines:
            chain, known = machine.chain, self._booked.get(machine.index)
            if known is not None and known.is_all_of(chain):
                continue
            booked = known or Booked(chain, chain.version, chain.version)
            fork = booked.fork(chain)
            for certificate in booked.chain.between(fork, booked.last):
                self.certify(certificate, -1)
            for certificate in chain.between(fork, chain.version):
                self.certify(certificate)
            self._booked[machine.index] = Booked(chain, booked.first, chain.version)

    def certify(self, certificate: Certificate, sign: int = 1) -> None:
        """Count one certified version, or subtract it (−1)."""
        included = certificate.outcome.included()
        self.credit.count(certificate.outcome, sign)
        old = self.certified
        self.certified = CertifiedWork(
            versions=old.versions + sign,
            minor=old.minor + sign * certificate.outcome.minor,
            tokens=self.credit.tokens,
            members=old.members + sign * len(included),
            steps=old.steps + sign * max((one.steps for one in included), default=0),
        )

    @property
    def credited_tokens(self) -> dict[str, int]:
        """Certified tokens by contributor."""
        return {peer: self.credit.tokens_of(peer) for peer in self.credit.ranked()}

    def adopted(self, action: Adopt, delay_steps: int | None) -> None:
        """Record that the learner took a version over, this many steps after its snapshot that is in the version."""
        if action.snapshot is not None and delay_steps is not None:
            self.delays_steps.append(delay_steps)
