"""The changes that a new version brings for us, computed before any is made. Pure; `FragmentMachine` applies them."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.cells.cell_version import adoption, state_route
from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Adopt
from coordinator.core.quorum import GraceEstimates
from coordinator.engine.version_round import VersionRound
from coordinator.round.attempt import Attempt
from dht.identity import PeerId


@dataclass(frozen=True, slots=True)
class Transition:
    """The step from a base to the version after it."""

    certificate: Certificate
    attempt: Attempt | None  # our attempt, if it made the version
    adopt: Adopt | None  # with the state, if we hold it, or with our snapshot that the version holds
    unseen: bool  # whether it holds work of ours without a snapshot here
    upstream: PeerId | None  # the peer that tells us when it has the state
    downstream: tuple[PeerId, ...]  # peers that we tell when we have it
    counted_from: float  # from when on inner steps count towards the next version
    estimates: GraceEstimates

    @property
    def held(self) -> bool:
        """Whether we hold the version's state already."""
        return self.adopt is not None and self.adopt.applied is not None


def transition(rounds: VersionRound, certificate: Certificate, now: float) -> Transition:
    """Return the changes that the next version brings for a peer with these rounds at its base."""
    cells, outcome = rounds.cells, certificate.outcome
    attempt = rounds.find(outcome.roster_id)
    adopt = adoption(cells, certificate, None if attempt is None else attempt.adoption(certificate))
    missed = adopt is None or (adopt.applied is None and adopt.snapshot is None)
    upstream, downstream = state_route(cells)
    # with cells steps count from the news of the version, so that heads and wards come to the next one together
    counted_from = now if attempt is None or cells.needed(now) else attempt.timeline.start
    return Transition(
        certificate,
        attempt,
        adopt,
        unseen=missed and not rounds.own_work.knows(outcome),
        upstream=upstream,
        downstream=downstream,
        counted_from=counted_from,
        estimates=_estimates(rounds, attempt, now),
    )


def _estimates(rounds: VersionRound, attempt: Attempt | None, now: float) -> GraceEstimates:
    """Return the estimates of round times, updated by this round if we took part from its first join on."""
    estimates = rounds.core.estimates
    gathering = None if attempt is None else rounds.joining.gatherings.get(attempt.group.attempt)
    if attempt is None or gathering is None or gathering.first_at is None or gathering.quorum_at is None:
        return estimates
    return estimates.with_round(gathering.quorum_at - gathering.first_at, now - attempt.timeline.start)
