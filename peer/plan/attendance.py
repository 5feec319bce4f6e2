"""The peers present in a simulated swarm, their reachability, and their inner steps so far."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from peer.plan.population import Absence, Cut, Flags, Floats, Population, Timetable

CHECKPOINT_SECONDS = 30.0  # between two checkpoints of a peer (`peer.node.checkpointer`)


class TimetableChange(NamedTuple):
    """A change in the timetable at one moment."""

    at_seconds: float
    kind: str  # leave, back, cut or heal
    what: Absence | Cut


@dataclass(slots=True)
class Attendance:
    """The state of all peers. `hidden_at`: since when a peer is unreachable without notice; infinity if it is not."""

    population: Population
    rng: np.random.Generator
    now: float = 0.0
    alive: Flags = field(init=False)
    side: Flags = field(init=False)
    made: Floats = field(init=False)
    next_absence: Floats = field(init=False)
    hidden_at: Floats = field(init=False)
    back_at: Floats = field(init=False)  # planned return of peers that have not contributed since
    _absences: list[deque[Absence]] = field(init=False)

    def __post_init__(self) -> None:
        peers = len(self.population)
        self.alive, self.side = np.ones(peers, dtype=bool), np.zeros(peers, dtype=bool)
        self.made, self.next_absence = np.zeros(peers), np.full(peers, math.inf)
        self.hidden_at, self.back_at = np.full(peers, math.inf), np.full(peers, -math.inf)
        self._absences = [deque() for _ in range(peers)]

    def begin(self, timetable: Timetable) -> list[TimetableChange]:
        """Return the first changes; each `apply` returns those that follow."""
        for one in timetable.absences:
            self._absences[one.peer].append(one)
        changes = [change for peer in range(len(self.population)) for change in self._next_absence(peer)]
        for cut in timetable.cuts:
            changes += [TimetableChange(cut.start_seconds, "cut", cut), TimetableChange(cut.end_seconds, "heal", cut)]
        return changes

    def _next_absence(self, peer: int) -> list[TimetableChange]:
        queue = self._absences[peer]
        self.next_absence[peer] = queue[0].start_seconds if queue else math.inf
        return [TimetableChange(queue[0].start_seconds, "leave", queue.popleft())] if queue else []

    def advance(self, to: float) -> None:
        """Let learners step until `to`; nothing else takes time."""
        self.made += np.where(self.alive, self.population.steps_per_second * (to - self.now), 0.0)
        self.now = to

    def reach(self) -> Flags:
        """Return the peers that can take part in the branch that counts: the side with more live peers."""
        here, there = self.alive & ~self.side, self.alive & self.side
        return here if here.sum() >= there.sum() else there

    def apply(self, change: TimetableChange) -> list[TimetableChange]:
        """Apply a change and return those that follow; the caller handles lost steps and fetched states."""
        if isinstance(change.what, Cut):
            self.side[list(change.what.side)] = change.kind == "cut"
            hidden = self.alive & ~self.reach()
            self.hidden_at = np.where(hidden, np.minimum(self.hidden_at, self.now), math.inf)
            return []
        peer, absence = change.what.peer, change.what
        if change.kind == "leave":
            self.alive[peer] = False
            self.hidden_at[peer] = math.inf if absence.kills else self.now  # a killed process's connections are reset
            return [TimetableChange(absence.back_seconds, "back", absence)]
        self.alive[peer], self.hidden_at[peer] = True, math.inf
        self.back_at[peer] = absence.start_seconds + absence.excused_seconds
        return self._next_absence(peer)

    def believed(self, lifetime_seconds: float) -> Flags:
        """Return the peers that others believe present but cannot reach."""
        return np.asarray(self.now - self.hidden_at <= lifetime_seconds) & np.isfinite(self.hidden_at)

    def lost_steps(self, peer: int) -> float:
        """Return the steps a killed peer has made since its last checkpoint."""
        return float(self.rng.random() * CHECKPOINT_SECONDS * self.population.steps_per_second[peer])

    def recovered(self, included: npt.NDArray[np.intp], since: float) -> list[float]:
        """Return seconds since their return, for peers that contribute for the first time since then."""
        back = self.back_at[included]
        self.back_at[included] = -math.inf
        return [float(self.now - one) for one in back if one >= since]
