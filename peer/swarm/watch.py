"""The record of a running swarm: the newest snapshot of every process, and facts that outlive a process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.views.snapshot import PeerSnapshot
from peer.observer.seen_certificates import SeenCertificates

FINISHED = "finished"  # the state of a peer whose run is over or drained


@dataclass(slots=True)
class SwarmWatch:
    """The state of a swarm as its polls have seen it, for views and reports. Processes go by their swarm names."""

    host: str
    learners: tuple[str, ...]
    versions_goal: int
    seconds_goal: float | None = None
    hostile: frozenset[str] = frozenset()  # learners that are neither believed nor waited for
    bytewise: bool = False  # whether it trains on bytes of Python's source, whose frequencies are known
    keys: Mapping[str, str] = field(default_factory=dict)  # of learners, if known before their first snapshot
    latest: dict[str, PeerSnapshot] = field(default_factory=dict)
    final: dict[str, PeerSnapshot] = field(default_factory=dict)
    died: dict[str, str] = field(default_factory=dict)
    past: list[PeerSnapshot] = field(default_factory=list)  # the last snapshot of every process that was replaced
    certificates: SeenCertificates = field(default_factory=SeenCertificates)  # shown by honest processes
    first_step_at: float | None = None
    last_step_at: float | None = None
    first_version: tuple[float, int] | None = None  # when versions first exceeded those at the start, and how many
    last_version: tuple[float, int] | None = None
    _versions_before: int | None = None

    def note(self, name: str, snapshot: PeerSnapshot, now: float) -> None:
        """Note a process's snapshot, taken at `now` seconds on one clock."""
        before = self.latest.get(name)
        self.latest[name] = snapshot
        if name == self.host and self._versions_before is None:
            self._versions_before = sum(fragment.version for fragment in snapshot.fragments)
        if snapshot.steps > (before.steps if before else 0):
            self.first_step_at = now if self.first_step_at is None else self.first_step_at
            self.last_step_at = now
        if name not in self.hostile:
            self.certificates.see(snapshot.certificates, now)
        self._note_versions(now)

    def _note_versions(self, now: float) -> None:
        versions = self.versions
        if versions > (self.last_version[1] if self.last_version else 0):
            self.last_version = (now, versions)
            self.first_version = self.first_version or self.last_version

    def note_final(self, name: str, snapshot: PeerSnapshot, now: float) -> None:
        """Note a process's last snapshot, taken after the drain."""
        self.note(name, snapshot, now)
        self.final[name] = snapshot

    def note_death(self, name: str, last_output: str) -> None:
        """Note that a process ended before the swarm did."""
        self.died.setdefault(name, last_output)

    def note_restart(self, name: str) -> None:
        """Note that a new process replaces the ended one of this name."""
        self.died.pop(name, None)
        if (last := self.latest.pop(name, None)) is not None:
            self.past.append(last)

    @property
    def names(self) -> tuple[str, ...]:
        """All processes, the host first."""
        return (self.host, *self.learners)

    @property
    def living(self) -> tuple[str, ...]:
        """The processes that have not died, in order."""
        return tuple(name for name in self.names if name not in self.died)

    @property
    def honest(self) -> tuple[str, ...]:
        """All processes except the hostile ones, the host first."""
        return tuple(name for name in self.names if name not in self.hostile)

    @property
    def living_honest(self) -> tuple[str, ...]:
        return tuple(name for name in self.honest if name not in self.died)

    @property
    def living_learners(self) -> tuple[str, ...]:
        """The honest learners that have not died."""
        return tuple(name for name in self.learners if name not in self.died and name not in self.hostile)

    @property
    def versions(self) -> int:
        """Number of versions over all fragments that the swarm has certified since it started."""
        return self.versions_of_run - (self._versions_before or 0)

    @property
    def versions_of_run(self) -> int:
        """Number of versions over all fragments that the run has, with those from before this swarm."""
        newest: dict[int, int] = {}
        for snapshot in (self.latest[name] for name in self.honest if name in self.latest):
            for index, fragment in enumerate(snapshot.fragments):
                newest[index] = max(newest.get(index, 0), fragment.version)
        return sum(newest.values())

    @property
    def versions_per_minute(self) -> float | None:
        """The rate between the first and the last version seen, so without the start; None if there is none."""
        if self.first_version is None or self.last_version is None or self.first_version == self.last_version:
            return None
        (began, before), (ended, after) = self.first_version, self.last_version
        return 60 * (after - before) / (ended - began) if ended > began else None

    @property
    def most_advanced(self) -> PeerSnapshot | None:
        """The honest snapshot that counts the most certified versions; the host's if several do."""
        seen = [self.latest[name] for name in self.honest if name in self.latest]
        return max(seen, key=lambda snapshot: snapshot.certified.versions, default=None)

    @property
    def host_snapshot(self) -> PeerSnapshot | None:
        return self.latest.get(self.host)

    def learner_snapshots(self) -> list[PeerSnapshot]:
        """Return the newest snapshot of every learner, including those that have died since."""
        return [self.latest[name] for name in self.learners if name in self.latest]

    def living_snapshots(self) -> list[PeerSnapshot]:
        """Return the newest snapshot of every learner that has not died."""
        return [self.latest[name] for name in self.learners if name in self.latest and name not in self.died]

    def lives(self) -> list[PeerSnapshot]:
        """Return the last snapshot of every process that there was: first the replaced ones, in order of their ends."""
        return [*self.past, *(self.latest[name] for name in self.names if name in self.latest)]

    @property
    def training_is_over(self) -> bool:
        """True if there are learners, and none has anything left to do."""
        states = [self.latest[name].state if name in self.latest else "" for name in self.living_learners]
        return bool(states) and all(state == FINISHED for state in states)

    @property
    def settled(self) -> bool:
        """True if all living honest processes know and hold the same versions, are finished, and have no round."""
        known = [self.latest.get(name) for name in self.living_honest]
        snapshots = [snapshot for snapshot in known if snapshot is not None]
        idle = not any(snapshot.rounds_in_flight for snapshot in snapshots)
        return len(snapshots) == len(known) and self.training_is_over and idle and same_heads(snapshots)


def at_rest(snapshots: Sequence[PeerSnapshot]) -> bool:
    """True if all hold the same versions, and no round is under way that could certify another."""
    idle = all(part.phase == "idle" for snapshot in snapshots for part in snapshot.fragments)
    return idle and same_heads(snapshots)


def same_heads(snapshots: Iterable[PeerSnapshot]) -> bool:
    """True if all know and hold the same version of every fragment."""
    heads = {tuple((part.version, part.head) for part in snapshot.fragments) for snapshot in snapshots}
    held = all(part.held_version == part.version for snapshot in snapshots for part in snapshot.fragments)
    return len(heads) == 1 and held
