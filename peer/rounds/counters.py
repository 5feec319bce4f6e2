"""Sums that people look at: certified work, and events. Nothing here decides anything."""

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
}  # as events and logs name it
DELAYS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Booked:
    """What of a fragment's chain is in the sums: its versions after `first`, up to `last`."""

    chain: Chain
    first: int
    last: int

    def is_all_of(self, chain: Chain) -> bool:
        """Whether nothing has changed; asked after every event, so it must be cheap."""
        return chain is self.chain and chain.version == self.last

    def fork(self, chain: Chain) -> int:
        """The newest of these versions that `chain` has too, as far as can be told."""
        shared = self.last if chain is self.chain else last_shared(self.chain, chain)
        return max(self.first, self.last if shared is None else min(shared, self.last))


class RunCounters:
    """Certificates and events of this life."""

    def __init__(self, fragments: int) -> None:
        self.certified = CertifiedWork()
        self.credit = Credit(fragments)
        self._booked: dict[int, Booked] = {}  # by fragment
        self.events: Counter[str] = Counter()
        self.clock_ahead_seconds = 0.0  # of other peers' clocks, as we found last
        self.slow_step_seconds: float | None = None  # a step of ours, where rounds do not wait so long
        self.hang_seconds: float | None = None  # for which the learner made no step, until it does
        self.refused: dict[Kept, str] = {}  # what could not be written when that was last tried, and why
        self.delays_steps: deque[int] = deque(maxlen=DELAYS_KEPT)
        self.audits: deque[AuditView] = deque(maxlen=AUDITS_TOLD_MAX)

    def refuse(self, what: Kept, reason: str) -> None:
        """This cannot be written; until `take`, the owner is told."""
        self.events[_REFUSALS[what]] += 1
        self.refused[what] = reason
        log.error(_REFUSALS[what], reason=reason)

    def take(self, what: Kept) -> None:
        """This has been written."""
        self.refused.pop(what, None)

    def tell(self, action: Tell, unix_seconds: float) -> None:
        self.events[action.event] += 1
        self.audits += audit_views(action, unix_seconds)

    def follow(self, machines: Sequence[FragmentMachine]) -> None:
        """Book every certificate that has joined a chain, however it came; the first call says where we begin.

        What was on a branch that was left is taken back: its peers bring their work again (docs/adr/0027).
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
        """Count one certified version, or take it back (−1)."""
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
        """The learner took a version over, this many steps after the snapshot that went into it."""
        if action.snapshot is not None and delay_steps is not None:
            self.delays_steps.append(delay_steps)
