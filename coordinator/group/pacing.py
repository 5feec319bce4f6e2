"""The pace of a fragment, from the voters' speeds in their presence (design §6.2 step 1, §6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.chain.chain import Chain
from coordinator.core.context import DEADLINE_DOUBLINGS_MAX, Core
from coordinator.core.quorum import quorum_size
from coordinator.core.timeline import LOCK_DEADLINES
from coordinator.group.schedule import (
    QUORUM_INTERVALS,
    VoterPace,
    due_time,
    interval_seconds,
    median_rate,
    spacing_seconds,
    steps_needed,
)

MINOR_INTERVALS = 3.0  # expected intervals without a full certificate before a minor one may be made (design §6.3)
FEW_INTERVALS = 6.0  # intervals after all locks before we adopt a version that one hostile key may have made alone
MOST_INTERVALS = 12.0  # intervals after all locks to wait for the peers that could make a full certificate


@dataclass(frozen=True, slots=True)
class Pacing:
    """Times that govern the next version of a fragment."""

    due_at: float
    spacing_seconds: float  # least time after the last opening of any fragment
    interval_seconds: float  # expected time between two versions


@dataclass(slots=True)
class Tempo:
    """One fragment's pace: the time of its newest full certificate, the start of its step count, and known speeds."""

    core: Core
    certified_at: float  # when we made or learnt of the newest full certificate
    counted_from: float  # from when on inner steps count towards the next version
    _known: tuple[tuple[float, ...], Pacing] | None = field(init=False, default=None)

    def pacing(self, chain: Chain, now: float) -> Pacing:
        """Return when the next version is due; computed again only if its basis has changed."""
        core = self.core
        basis = (chain.version, self.counted_from, core.presence.revision, core.steps, core.steps_seen)
        if self._known is None or self._known[0] != basis:
            self._known = (basis, _pacing(core, chain, self.counted_from, now))
        return self._known[1]

    def interval_seconds(self, chain: Chain, now: float) -> float:
        """Return the expected time between two versions."""
        return self.pacing(chain, now).interval_seconds

    def minor_allowed(self, chain: Chain, now: float, tolerance_intervals: float = 0.0) -> bool:
        """Whether a minority may go on alone, after enough time without a full certificate (design §6.3)."""
        return chain.version > 0 and self._is_overdue(chain, now, tolerance_intervals)

    def few_allowed(self, chain: Chain, bound_until: float, now: float) -> bool:
        """Whether enough time has passed to adopt a version that one hostile key may have made alone.

        One withheld vote binds all others for three deadlines, and then perhaps another one does. So the intervals
        count from the end of the last lock, ours or the others' (`bound_until`).
        """
        locks = LOCK_DEADLINES * self.core.deadline_seconds(0)
        since = max(self.certified_at + locks, bound_until)
        return chain.version > 0 and now >= since + FEW_INTERVALS * self.interval_seconds(chain, now)

    def most_failed(self, chain: Chain, since: float, now: float) -> bool:
        """Whether the peers here had enough time for a version of their own, so that they evidently cannot make one.

        The longest lock may bind any of them, so it is included.
        """
        locks = LOCK_DEADLINES * self.core.deadline_seconds(DEADLINE_DOUBLINGS_MAX)
        since = max(self.certified_at, since)
        return now >= since + locks + MOST_INTERVALS * self.interval_seconds(chain, now)

    def witnesses_needed(self, chain: Chain, now: float) -> bool:
        """Whether the live learners are too few for a version, or seem to take part without ever making one."""
        return self.core.witnesses_needed(chain.active_set(), now) or self._is_overdue(chain, now)

    def _is_overdue(self, chain: Chain, now: float, tolerance_intervals: float = 0.0) -> bool:
        patience = (MINOR_INTERVALS - tolerance_intervals) * self.interval_seconds(chain, now)
        return now >= self.certified_at + patience


def voter_paces(core: Core, chain: Chain, counted_from: float, now: float) -> list[VoterPace]:
    """Return the speeds of the voters whose median decides; at version 0, of all peers that train.

    Our own speed counts even without a vote: in a small swarm only a few peers may go on. In a crowd it does not, so
    that all peers come to a version at one time, however slow they are.
    """
    presence, first = core.presence, chain.version == 0
    peers = presence.trainers(now) if first else chain.active_set() & presence.sightings.keys()
    found = []
    for peer in peers - {core.me} - core.presence.shunned:
        sighting = presence.sightings[peer]
        if sighting.presence.state == "hosting":
            continue
        steps, seen = (sighting.presence.steps, sighting.seen_seconds) if first else (0, counted_from)
        found.append(VoterPace(steps, seen, sighting.presence.steps_per_second))
    votes = first or core.me in chain.active_set()
    if core.contributes and (votes or not found or not core.crowded(chain, now)):
        steps, seen = (core.steps, core.steps_seen) if first else (0, counted_from)
        found.append(VoterPace(steps, seen, core.steps_per_second))
    return found


def _pacing(core: Core, chain: Chain, counted_from: float, now: float) -> Pacing:
    voters = voter_paces(core, chain, counted_from, now)
    needed = steps_needed(core.pace, chain.fragment, chain.version)
    quorum = quorum_size(core.pace, len(chain.active_set()))
    rate = median_rate(_timing(core, chain, voters))
    interval = interval_seconds(core.pace, rate)
    return Pacing(
        due_at=due_time(voters, needed, quorum, counted_from + QUORUM_INTERVALS * interval),
        spacing_seconds=spacing_seconds(core.pace, rate),
        interval_seconds=interval,
    )


def _timing(core: Core, chain: Chain, voters: Sequence[VoterPace]) -> Sequence[VoterPace]:
    """Return the voters whose rates set the interval: at version 0, where any peer counts, none slower than us.

    Else keys that claim to train at a crawl would keep a run from beginning (docs/adr/0042).
    """
    own = core.steps_per_second if core.contributes and chain.version == 0 else 0.0
    return [one for one in voters if one.steps_per_second >= own]
