"""One attempt of a simulated swarm: its roster, its start, and the resulting round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coordinator.core.timeline import CHECK_SHARE
from peer.plan.attendance import Attendance
from peer.plan.cells import CellRound, CellWork
from peer.plan.cost import Peers, RoundCost
from peer.plan.population import Flags, Floats

NOBODY = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class PlannedAttempt:
    """A roster fixed at `start`. `cell_work` is what its heads contribute for their cells, if there are cells."""

    fragment: int
    roster: Peers
    begun: float
    start: float
    minor: bool
    snapshot_seconds: Floats  # from the start until each member has its work ready
    cell_work: CellWork | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """A round in flight that will be certified. It begins with its roster, or once its cells gather."""

    fragment: int
    roster: Peers
    included: Peers  # members whose work it holds
    snapshots: Floats  # steps made by then, of `included`
    begun: float
    started: float  # with its roster
    minor: bool
    wards: Peers  # those of `included` whose work came through a cell
    supplied_seconds: Floats  # from the certificate until each ward has the step


@dataclass(frozen=True, slots=True)
class Void:
    """A round in flight that will not be certified."""

    fragment: int


@dataclass(frozen=True, slots=True)
class ClosingRule:
    """The rule by which a leader closes its roster: after the grace window, and once a full version is possible."""

    active: Flags  # of the whole swarm
    needed: float  # more than this many of the active must be present
    quorum: int
    grace_seconds: float

    def seconds(self, roster: Peers, ready: Floats) -> float:
        """Return when the leader closes; `ready` is when each member of the roster joins."""
        order = np.argsort(ready)
        enough = np.cumsum(self.active[roster][order]) > self.needed
        first = order[int(np.argmax(enough))] if enough.any() else order[0]
        return float(max(ready[order[min(self.quorum, len(order)) - 1]] + self.grace_seconds, ready[first]))


def in_cells(
    attempt: PlannedAttempt, cells: CellRound, rule: ClosingRule, joined: Peers, newest: Peers, rng: np.random.Generator
) -> PlannedAttempt:
    """Return the attempt with all other peers' work, brought by members that had a seat before; late members drop out.

    A new seat's work goes through a head, too, and its peer asks into the group once its cell is done.
    """
    roster, leads = attempt.roster, np.isin(attempt.roster, newest)
    cell_work = cells.play(roster[leads], joined[~np.isin(joined, roster[leads])], rng)
    ready = np.full(len(roster), float(np.median(cell_work.ready_seconds)))
    ready[leads] = cell_work.ready_seconds
    here = ready <= rule.seconds(roster, ready)
    start = attempt.start + float(ready[here].max())
    return replace(
        attempt, roster=roster[here], start=start, snapshot_seconds=np.zeros(here.sum()), cell_work=cell_work
    )


def round_of(attempt: PlannedAttempt, present: Flags, attendance: Attendance) -> Round:
    """Return the round of the present members, and of the wards whose work they bring."""
    members, ahead = attempt.roster[present], attempt.start - attendance.now + attempt.snapshot_seconds[present]
    begun, wards, supplied = attempt.start, NOBODY, np.zeros(0)
    if attempt.cell_work is not None:
        cell_work = attempt.cell_work.through(members)
        leads = np.isin(members, cell_work.heads)
        begun, wards, supplied = attempt.begun, cell_work.wards, cell_work.supplied_seconds
        members = np.concatenate([members[leads], wards])
        ahead = np.concatenate([ahead[leads], cell_work.snapshot_seconds])
    snapshots = np.floor(attendance.made[members] + attendance.population.steps_per_second[members] * ahead)
    return Round(
        attempt.fragment, attempt.roster, members, snapshots, begun, attempt.start, attempt.minor, wards, supplied
    )


def slow_reducers(cost: RoundCost, deadline: float) -> bool:
    """Whether some reducers, but at most a third, are too late for the first check (design §6.2 step 8)."""
    late = int((cost.results_at > CHECK_SHARE * deadline).sum())
    return 0 < 3 * late <= len(cost.results_at)
