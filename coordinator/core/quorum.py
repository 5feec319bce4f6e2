"""Rules for closing a roster: quorum and adaptive grace window (design §6.2 step 3, DiLoCo 2604.21428 §3.2)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from coordinator.run.manifest import PaceSpec
from dht.identity import PeerId

AVERAGE_WEIGHT = 0.1  # weight of a new measurement in the moving averages
GRACE_SECONDS_MIN = 0.1  # two long round trips: a peer that asks just when the quorum is reached is not left out


@dataclass(frozen=True, slots=True)
class GraceEstimates:
    """Moving averages behind the grace window, in seconds; None until measured."""

    quorum_seconds: float | None = None
    sync_seconds: float | None = None

    def with_round(self, quorum_seconds: float, sync_seconds: float) -> GraceEstimates:
        """Add one certified round: the time from the first join to K joins, and from the roster to the certificate."""
        return GraceEstimates(_average(self.quorum_seconds, quorum_seconds), _average(self.sync_seconds, sync_seconds))


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + AVERAGE_WEIGHT * (new - old)


def grace_seconds(pace: PaceSpec, step_seconds: float, estimates: GraceEstimates) -> float:
    """Return clamp(γ·(τ·ξ_round − ξ_quorum − ξ_sync), GRACE_SECONDS_MIN, ξ_round) with ξ_round = H·ξ_step/P."""
    round_seconds = pace.steps_per_version * step_seconds / pace.fragments
    waited = (estimates.quorum_seconds or 0.0) + (estimates.sync_seconds or 0.0)
    slack = pace.overlap * round_seconds - waited
    floor = min(GRACE_SECONDS_MIN, round_seconds)
    return min(max(pace.grace_share * slack, floor), round_seconds)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A leader's knowledge while it gathers joins."""

    joined: Set[PeerId]
    contributors: int  # joined peers that bring an outer gradient
    expected: Set[PeerId]  # live trainers that could still join
    active: Set[PeerId]
    grace_since: float  # when the quorum was reached or the wait for it ended
    grace_seconds: float
    minor_allowed: bool


def close_roster(gathered: Gathered, pace: PaceSpec, now: float) -> tuple[bool, str]:
    """Return whether to close the roster now, and the reason in words."""
    if gathered.contributors < pace.min_group:
        return False, f"{gathered.contributors} of at least {pace.min_group} members"
    share_reached = len(gathered.joined & gathered.active) > pace.min_share * len(gathered.active)
    if not share_reached and not gathered.minor_allowed:
        return False, f"no more than {pace.min_share:.0%} of the active set has joined"
    missing = len(gathered.expected - gathered.joined)
    if missing == 0 and share_reached:
        return True, "everyone live has joined"
    if now < gathered.grace_since:
        return False, f"{gathered.contributors} of {quorum_size(pace, len(gathered.active))} for the quorum"
    left = gathered.grace_since + gathered.grace_seconds - now
    if left > 0:
        return False, f"grace window open for {left:.2f} s more, {missing} missing"
    return True, f"grace window over, {missing} missing"


def quorum_size(pace: PaceSpec, active: int) -> int:
    """Return K = min(K of the manifest, size of the active set), but at least the minimum of a group."""
    return max(min(pace.quorum, active), pace.min_group)
