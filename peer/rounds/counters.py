"""Sums that people look at: the learner's progress, certified work, events. Nothing here decides anything."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import structlog

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.chain.lineage import last_shared
from coordinator.core.actions import Adopt, Tell
from coordinator.engine.fragment import FragmentMachine
from coordinator.views.credit import Credit
from coordinator.views.network_view import AuditView, ScoreView
from coordinator.views.snapshot import CertifiedWork
from peer.learner.messages import Steps
from peer.rounds.audit_views import AUDITS_TOLD_MAX, SCORES_TOLD_MAX, audit_views, score_view

log = structlog.get_logger(__name__)

Kept = Literal["checkpoint", "vote"]
_REFUSALS: dict[Kept, str] = {
    "checkpoint": "checkpoint_failed",
    "vote": "vote_not_written",
}  # as events and logs name it
RATE_WEIGHT = 0.2  # of a new report in the moving averages of rate and loss
DELAYS_KEPT = 4096
STEPS_TIMED_MIN = 5  # reports before anything is said of how long a step takes: the first one prepares much


class LearnerProgress:
    """What the learner's reports add up to."""

    def __init__(self) -> None:
        self.device = self.use = ""  # in words: what the learner trains on, and how
        self.steps = 0
        self.tokens = 0
        self.loss: float | None = None
        self.steps_per_second = 0.0
        self.cpu_seconds = 0.0
        self.skipped = 0  # steps of this process that changed nothing
        self.first_at: float | None = None
        self.last_at = 0.0
        self._window: deque[tuple[float, int]] = deque(maxlen=20)
        self._busy_seconds = 0.0  # inside steps, as reported last
        self._cpu_seconds_before = 0.0  # of processes that have ended
        self._step_seconds: deque[float] = deque(maxlen=20)

    def begin(self, step: int, device: str, use: str) -> None:
        """A process is ready that has made so many steps, perhaps in place of one that has ended."""
        self.steps, self.device, self.use = step, device, use
        self._cpu_seconds_before, self._busy_seconds, self.skipped = self.cpu_seconds, 0.0, 0
        self.rest()
        self.forget_timing()

    def report(self, steps: Steps, now: float) -> None:
        """Include one report of the learner."""
        self.cpu_seconds = self._cpu_seconds_before + steps.cpu_seconds
        if not steps.entries:
            return
        if self.first_at is None:
            self.first_at = now
        self.last_at = now
        self.skipped = steps.skipped
        steps_before = self.steps
        for entry in steps.entries:
            self.steps = entry.step
            self.tokens += entry.tokens
            if entry.loss is not None:
                self.loss = entry.loss if self.loss is None else self.loss + RATE_WEIGHT * (entry.loss - self.loss)
        if self.steps > steps_before:
            self._step_seconds.append((steps.busy_seconds - self._busy_seconds) / (self.steps - steps_before))
        self._busy_seconds = steps.busy_seconds
        self._window.append((now, self.steps))
        since, steps_then = self._window[0]
        if now > since:
            self.steps_per_second = (self.steps - steps_then) / (now - since)

    @property
    def training_seconds(self) -> float:
        """Wall time between the first and the last step reported."""
        return 0.0 if self.first_at is None else self.last_at - self.first_at

    @property
    def step_seconds(self) -> float | None:
        """How long a step has lately kept the learner from anything else, as a median; None while that is not known."""
        return median(self._step_seconds) if len(self._step_seconds) >= STEPS_TIMED_MIN else None

    def rest(self) -> None:
        """The learner was told to make no steps."""
        self.steps_per_second = 0.0
        self._window.clear()

    def forget_timing(self) -> None:
        """Steps take another time from now on."""
        self._step_seconds.clear()


@dataclass(frozen=True, slots=True)
class Booked:
    """What of a fragment's chain is in the sums: its versions after `first`, up to `last`."""

    chain: Chain
    first: int
    last: int

    def fork(self, chain: Chain) -> int:
        """The newest of these versions that `chain` has too, as far as can be told."""
        shared = self.last if chain is self.chain else last_shared(self.chain, chain)
        return max(self.first, self.last if shared is None else min(shared, self.last))


class Book:
    """Certificates and events of this life."""

    def __init__(self, fragments: int) -> None:
        self.certified = CertifiedWork()
        self.credit = Credit(fragments)
        self._booked: dict[int, Booked] = {}  # by fragment
        self.events: Counter[str] = Counter()
        self.clock_ahead_seconds = 0.0  # of other peers' clocks, as we found last
        self.slow_step_seconds: float | None = None  # a step of ours, where rounds do not wait so long
        self.hang_seconds: float | None = None  # for which the learner made no step, until it does
        self.refused: dict[Kept, str] = {}  # what the disk did not take when it was last asked to, and why
        self.delays_steps: deque[int] = deque(maxlen=DELAYS_KEPT)
        self.audits: deque[AuditView] = deque(maxlen=AUDITS_TOLD_MAX)
        self.scores: OrderedDict[str, ScoreView] = OrderedDict()  # of those scored last

    def refuse(self, what: Kept, reason: str) -> None:
        """The disk does not take this; until `take`, the owner is told."""
        self.events[_REFUSALS[what]] += 1
        self.refused[what] = reason
        log.error(_REFUSALS[what], reason=reason)

    def take(self, what: Kept) -> None:
        """The disk has taken this."""
        self.refused.pop(what, None)

    def tell(self, action: Tell, unix_seconds: float) -> None:
        self.events[action.event] += 1
        self.audits += audit_views(action, unix_seconds)
        scored = score_view(action, unix_seconds)
        if scored is not None:
            self.scores.pop(scored.about, None)
            self.scores[scored.about] = scored
        while len(self.scores) > SCORES_TOLD_MAX:
            self.scores.popitem(last=False)

    def follow(self, machines: Sequence[FragmentMachine]) -> None:
        """Book every certificate that has joined a chain, however it came; the first call says where we begin.

        What was on a branch that was left is taken back: its peers bring their work again (docs/adr/0027).
        """
        for machine in machines:
            chain = machine.chain
            booked = self._booked.get(machine.index) or Booked(chain, chain.version, chain.version)
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
