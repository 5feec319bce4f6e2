"""What was seen of a swarm while it ran: the newest snapshot of every process, and what must not be forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.views.snapshot import PeerSnapshot
from peer.observer.seen_certificates import SeenCertificates

FINISHED = "finished"  # the state of a peer whose run is over or drained


@dataclass(slots=True)
class SwarmWatch:
    """Fed by what polls the swarm; views and reports read it. Processes go by the name that the swarm gave them."""

    host: str
    learners: tuple[str, ...]
    versions_goal: int
    seconds_goal: float | None = None
    hostile: frozenset[str] = frozenset()  # learners of whom nothing is believed and nothing is expected
    bytewise: bool = False  # whether it trains on Python's source text byte by byte, whose frequencies are known
    keys: Mapping[str, str] = field(default_factory=dict)  # of learners, where they are known before these say so
    latest: dict[str, PeerSnapshot] = field(default_factory=dict)
    final: dict[str, PeerSnapshot] = field(default_factory=dict)
    died: dict[str, str] = field(default_factory=dict)
    past: list[PeerSnapshot] = field(default_factory=list)  # the last of every process that another one followed
    certificates: SeenCertificates = field(default_factory=SeenCertificates)  # that honest processes told of
    first_step_at: float | None = None
    last_step_at: float | None = None
    first_version: tuple[float, int] | None = None  # when we first saw more versions than at the start, and how many
    last_version: tuple[float, int] | None = None
    _versions_before: int | None = None

    def note(self, name: str, snapshot: PeerSnapshot, now: float) -> None:
        """A process told about itself at this time, in seconds on any one clock."""
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
        """The last thing that a process told, after the drain."""
        self.note(name, snapshot, now)
        self.final[name] = snapshot

    def note_death(self, name: str, last_words: str) -> None:
        """A process ended before the swarm did."""
        self.died.setdefault(name, last_words)

    def note_restart(self, name: str) -> None:
        """Another process goes on where this one ended."""
        self.died.pop(name, None)
        if (last := self.latest.pop(name, None)) is not None:
            self.past.append(last)

    @property
    def names(self) -> tuple[str, ...]:
        """All processes, the host first."""
        return (self.host, *self.learners)

    @property
    def living(self) -> tuple[str, ...]:
        """Those that have not died, in order."""
        return tuple(name for name in self.names if name not in self.died)

    @property
    def honest(self) -> tuple[str, ...]:
        """All processes but the hostile ones, the host first."""
        return tuple(name for name in self.names if name not in self.hostile)

    @property
    def living_honest(self) -> tuple[str, ...]:
        return tuple(name for name in self.honest if name not in self.died)

    @property
    def living_learners(self) -> tuple[str, ...]:
        """The honest ones."""
        return tuple(name for name in self.learners if name not in self.died and name not in self.hostile)

    @property
    def versions(self) -> int:
        """Versions that the swarm has certified since it started, over all fragments."""
        newest: dict[int, int] = {}
        for snapshot in (self.latest[name] for name in self.honest if name in self.latest):
            for index, fragment in enumerate(snapshot.fragments):
                newest[index] = max(newest.get(index, 0), fragment.version)
        return sum(newest.values()) - (self._versions_before or 0)

    @property
    def versions_per_minute(self) -> float | None:
        """Between the first and the last version that we saw, so without what the start took."""
        if self.first_version is None or self.last_version is None or self.first_version == self.last_version:
            return None
        (began, before), (ended, after) = self.first_version, self.last_version
        return 60 * (after - before) / (ended - began) if ended > began else None

    @property
    def witness(self) -> PeerSnapshot | None:
        """The snapshot that has seen most certificates; the host's among equals."""
        seen = [self.latest[name] for name in self.honest if name in self.latest]
        return max(seen, key=lambda snapshot: snapshot.certified.versions, default=None)

    @property
    def host_snapshot(self) -> PeerSnapshot | None:
        return self.latest.get(self.host)

    def learner_snapshots(self) -> list[PeerSnapshot]:
        """The newest snapshot of every learner, also of those that have died since."""
        return [self.latest[name] for name in self.learners if name in self.latest]

    def lives(self) -> list[PeerSnapshot]:
        """The last snapshot of every process there ever was, in order of their ends."""
        return [*self.past, *(self.latest[name] for name in self.names if name in self.latest)]

    @property
    def training_is_over(self) -> bool:
        """True if there are learners, and none has anything left to do."""
        states = [self.latest[name].state if name in self.latest else "" for name in self.living_learners]
        return bool(states) and all(state == FINISHED for state in states)

    @property
    def settled(self) -> bool:
        """True if every living honest process holds what it knows of, all know the same, and no round is in flight."""
        known = [self.latest.get(name) for name in self.living_honest]
        snapshots = [snapshot for snapshot in known if snapshot is not None]
        idle = not any(snapshot.rounds_in_flight for snapshot in snapshots)
        return len(snapshots) == len(known) and self.training_is_over and idle and same_heads(snapshots)


def at_rest(snapshots: Sequence[PeerSnapshot]) -> bool:
    """True if all of them hold the same versions, and no round is under way that could certify another."""
    idle = all(part.phase == "idle" for snapshot in snapshots for part in snapshot.fragments)
    return idle and same_heads(snapshots)


def same_heads(snapshots: Iterable[PeerSnapshot]) -> bool:
    """True if all of them know and hold the same version of every fragment."""
    heads = {tuple((part.version, part.head) for part in snapshot.fragments) for snapshot in snapshots}
    held = all(part.held_version == part.version for snapshot in snapshots for part in snapshot.fragments)
    return len(heads) == 1 and held
