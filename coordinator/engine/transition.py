"""What a new version changes for us, found out before anything has changed. Pure; `FragmentMachine` applies it."""

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
    """From a base to the version after it."""

    certificate: Certificate
    attempt: Attempt | None  # ours that made it
    adopt: Adopt | None  # with the state, if we hold it, or with our snapshot that is in it
    unseen: bool  # it has work of ours of which we have no snapshot
    upstream: PeerId | None  # who tells us when it has the state
    downstream: tuple[PeerId, ...]  # whom we tell
    counted_from: float  # since when inner steps count towards the next one
    estimates: GraceEstimates

    @property
    def held(self) -> bool:
        """Whether we hold its state already."""
        return self.adopt is not None and self.adopt.applied is not None


def transition(rounds: VersionRound, certificate: Certificate, now: float) -> Transition:
    """What follows from the next version for a peer that has gone through these rounds at its base."""
    cells, outcome = rounds.cells, certificate.outcome
    attempt = rounds.find(outcome.roster_id)
    adopt = adoption(cells, certificate, None if attempt is None else attempt.adoption(certificate))
    missed = adopt is None or (adopt.applied is None and adopt.snapshot is None)
    upstream, downstream = state_route(cells)
    # with cells from when all hear of it, so that heads and wards come to the next version together
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
    """What the round teaches of how long rounds take, if it was ours from its first join on."""
    estimates = rounds.core.estimates
    gathering = None if attempt is None else rounds.joining.gatherings.get(attempt.group.attempt)
    if attempt is None or gathering is None or gathering.first_at is None or gathering.quorum_at is None:
        return estimates
    return estimates.with_round(gathering.quorum_at - gathering.first_at, now - attempt.timeline.start)
