"""The record of a chaos run's real events. All times are seconds of one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.views.snapshot import PeerSnapshot
from peer.chaos.plan import MENDING, Event
from peer.swarm.watch import SwarmWatch


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """An event that fired, or could not: then `refusal` is the reason."""

    event: Event
    seconds: float
    refusal: str | None = None

    @property
    def is_fault(self) -> bool:
        """Whether it broke something."""
        return self.refusal is None and self.event.do not in MENDING


@dataclass(slots=True)
class Life:
    """One process of a learner: when further steps, and the first contribution, were observed."""

    pid: int
    stepped_at: list[float] = field(default_factory=list)
    contributed_at: float | None = None


@dataclass(frozen=True, slots=True)
class UnplannedExit:
    """An unplanned end of a process."""

    name: str
    words: str
    seconds: float


@dataclass
class ChaosWatch(SwarmWatch):
    """A swarm's watch that also records each life of each peer, and every fault."""

    lives_of: dict[str, list[Life]] = field(default_factory=dict)
    outcomes: list[EventOutcome] = field(default_factory=list)
    unplanned_exits: list[UnplannedExit] = field(default_factory=list)

    def note(self, name: str, snapshot: PeerSnapshot, now: float) -> None:
        """Record a process's snapshot of itself."""
        steps_before = self.latest[name].steps if name in self.latest else None
        super().note(name, snapshot, now)
        if name != self.host:
            lives = self.lives_of.setdefault(name, [])
            if steps_before is None or lives[-1].pid != snapshot.pid:  # in a container, the pid is always the same
                lives.append(Life(snapshot.pid))
                steps_before = None
            life = lives[-1]
            if steps_before is not None and snapshot.steps > steps_before:
                life.stepped_at.append(now)
            if snapshot.adoption_delays_steps and life.contributed_at is None:
                life.contributed_at = now

    @property
    def everyone_trains(self) -> bool:
        """Whether every honest learner trains, and every fragment has a certificate."""
        snapshots = [self.latest.get(name) for name in self.learners if name not in self.hostile]
        training = all(one is not None and one.state == "training" for one in snapshots)
        return training and all(version for version, _ in self.heads().values())

    @property
    def everyone_is_back(self) -> bool:
        """Whether every living honest process answers and is neither starting nor catching up."""
        snapshots = [self.latest.get(name) for name in self.living_honest]
        return all(one is not None and one.state not in ("starting", "catching up") for one in snapshots)

    def heads(self) -> dict[int, tuple[int, str]]:
        """Return version and digest of each fragment at the honest peers; the highest version if they differ."""
        newest: dict[int, tuple[int, str]] = {}
        for name in self.living_honest:
            for index, part in enumerate(self.latest[name].fragments if name in self.latest else ()):
                newest[index] = max(newest.get(index, (0, "")), (part.version, part.head))
        return newest
