"""A volunteer swarm in virtual time, round by round: certified and lost work, and the load of the lines.

The rules are the protocol's (design §6). A fragment is due when its active set has made H steps. At most τ rounds are
in flight, and a roster takes at most 32 of the peers present. A certificate needs two thirds of the roster and more
than `min_share` of the active set. Learners never wait. `peer.plan.cost` has the cost of a round. numpy computes all
peers at once; a heap orders rounds and absences. All randomness comes from one generator.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from coordinator.chain.certificate import more_than_share, votes_needed
from coordinator.chain.chain import ACTIVE_CERTIFICATES
from coordinator.core.context import DEADLINE_DOUBLINGS_MAX
from coordinator.core.quorum import GraceEstimates, grace_seconds
from coordinator.core.tickets import NEW_SEATS
from coordinator.core.timeline import GONE_SHARE, GRACE_SHARE_MAX, INPUTS_SHARE, JOIN_SHARE, RECHECK_SHARE
from coordinator.group.joining import VOID_BACKOFF_SHARE
from coordinator.group.pacing import MINOR_INTERVALS
from coordinator.group.schedule import SPACING_SHARE
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from peer.plan.attempt import ClosingRule, PlannedAttempt, Round, Void, in_cells, round_of, slow_reducers
from peer.plan.attendance import Attendance, TimetableChange
from peer.plan.cells import CellRound
from peer.plan.cost import Members, Peers, Workload, round_cost
from peer.plan.population import Absence, Cut, Flags, Floats, Population, Timetable

NEW_SEATS_SHARE = NEW_SEATS / PEERS_PER_GROUP_MAX
STATES_SHARE = 0.5  # of all uplinks, for states that other peers fetch


@dataclass(slots=True)
class PlanTally:
    """Counts since the warm-up."""

    since: float
    versions: int = 0
    minor: int = 0
    void: int = 0
    steps: float = 0.0  # certified, over all fragments
    contributions: int = 0
    certified_at: list[float] = field(default_factory=list)
    round_seconds: list[float] = field(default_factory=list)
    interval_steps: list[float] = field(default_factory=list)
    recovery_seconds: list[float] = field(default_factory=list)


class PlannedSwarm:
    """One simulation: `run` it, then read `tally`, `sent_bits` and `received_bits`."""

    def __init__(self, work: Workload, population: Population, timetable: Timetable, rng: np.random.Generator) -> None:
        peers, fragments = len(population), work.pace.fragments
        self.work, self.population, self.rng = work, population, rng
        self.attendance, self.tally = Attendance(population, rng), PlanTally(0.0)
        self.counted: Floats = np.zeros((fragments, peers))  # steps that some version holds
        self.counted_version = np.zeros((fragments, peers), dtype=np.int64)
        self.ready_at: Floats = np.zeros((fragments, peers))  # each peer has the newest state from then on
        self.version = np.zeros(fragments, dtype=np.int64)
        self.counted_from: Floats = np.zeros(fragments)
        self.full_at: Floats = np.zeros(fragments)
        self.not_before: Floats = np.zeros(fragments)
        self.voids = np.zeros(fragments, dtype=np.int64)
        self.rosters: list[deque[Peers]] = [deque(maxlen=ACTIVE_CERTIFICATES) for _ in range(fragments)]
        self.in_flight: set[int] = set()
        self.opened_at, self.wake_at = -math.inf, math.inf
        self.served_until = 0.0  # until then, states are being sent to peers that wait
        self.estimates = GraceEstimates()
        self.sent_bits, self.received_bits = np.zeros(peers), np.zeros(peers)
        self._heap: list[tuple[float, int, TimetableChange | Round | Void | str]] = []
        self._pushed = 0
        for change in self.attendance.begin(timetable):
            self._push(change.at_seconds, change)
        present = np.flatnonzero(self.attendance.next_absence > 0)
        self.founders: Peers = rng.permutation(present)[: work.group_max]

    @property
    def now(self) -> float:
        return self.attendance.now

    # -- time

    def run(self, seconds: float, warmup_seconds: float, rounds_max: int) -> float:
        """Simulate; returns the counted seconds, fewer than requested if `rounds_max` rounds came first."""
        self._push(warmup_seconds, "count")
        self._open()
        rounds = 0
        while self._heap and self._heap[0][0] <= seconds and rounds < rounds_max:
            at, _, what = heapq.heappop(self._heap)
            self.attendance.advance(at)
            rounds += isinstance(what, Round | Void)
            self._handle(what)
            self._open()
        if rounds < rounds_max:
            self.attendance.advance(seconds)
        return max(self.now - self.tally.since, 0.0)

    def _push(self, at: float, what: TimetableChange | Round | Void | str) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at, self._pushed, what))

    def _wake(self, at: float) -> None:
        """Check again at this time, unless a check is due before."""
        if at < self.wake_at or self.wake_at <= self.now:
            self.wake_at = at
            self._push(at, "wake")

    def _handle(self, what: TimetableChange | Round | Void | str) -> None:
        if isinstance(what, Round):
            self._certify(what)
        elif isinstance(what, Void):
            self._void(what.fragment)
        elif isinstance(what, TimetableChange):
            self._change(what)
        elif what == "count":
            self.tally = PlanTally(self.now)
            self.sent_bits[:] = self.received_bits[:] = 0.0

    # -- peers come and go

    def _change(self, change: TimetableChange) -> None:
        what = change.what
        for following in self.attendance.apply(change):
            self._push(following.at_seconds, following)
        if isinstance(what, Cut) and change.kind == "heal":
            self._heal(what)
        elif isinstance(what, Absence) and change.kind == "back":
            self._fetch(np.array([what.peer]), range(self.work.pace.fragments), self.work.state_bits)
        elif isinstance(what, Absence) and what.kills:
            lost = self.attendance.lost_steps(what.peer)
            self.counted[:, what.peer] += np.minimum(self._pending()[:, what.peer], lost)

    def _pending(self) -> Floats:
        return self.attendance.made - self.counted

    def _heal(self, cut: Cut) -> None:
        """End a partition; drop the work that the smaller side certified alone, after three intervals (design §8)."""
        peers = len(self.population)
        small = sorted(cut.side if 2 * len(cut.side) <= peers else set(range(peers)) - cut.side)
        alone = self.now - cut.start_seconds - MINOR_INTERVALS * self._interval_seconds()
        if alone > 0 and len(small) >= self.work.pace.min_group:
            lost = np.minimum(alone * self.population.steps_per_second[small], self._pending()[:, small])
            self.counted[:, small] += np.maximum(lost, 0.0)
        self._fetch(np.array(small, dtype=np.intp), range(self.work.pace.fragments), self.work.state_bits)

    def _fetch(self, peers: Peers, fragments: range, bits: float) -> None:
        """Send these peers the newest states or steps, one after another, from all others present."""
        alive, live = self.attendance.alive, max(int(self.attendance.alive.sum()), 1)
        given = STATES_SHARE * float(self.population.up[alive].sum())
        taken = bits / self.population.down[peers] + 4 * self.population.latency_seconds[peers]
        for place, fragment in enumerate(fragments):
            self.served_until = max(self.now, self.served_until) + bits * len(peers) / max(given, 1.0)
            self.ready_at[fragment, peers] = np.maximum(self.now + (place + 1) * taken, self.served_until)
        self.received_bits[peers] += bits * len(fragments)
        self.sent_bits[alive] += bits * len(fragments) * len(peers) / live

    # -- rounds

    def _interval_seconds(self) -> float:
        return self.work.pace.steps_per_version / float(np.median(self.population.steps_per_second))

    def _active(self, fragment: int) -> Flags:
        """Return the fragment's active set; at version 0 the founders."""
        active = np.zeros(len(self.population), dtype=bool)
        for roster in self.rosters[fragment] or (self.founders,):
            active[roster] = True
        return active

    def _open(self) -> None:
        """Open all rounds that are due; else wake when the next fragment is."""
        pace = self.work.pace
        while len(self.in_flight) < pace.overlap:
            reach = self.attendance.reach()
            if not reach.any():
                return
            interval = pace.steps_per_version / float(np.median(self.population.steps_per_second[reach]))
            first = (np.arange(pace.fragments) + 1) / pace.fragments
            due = self.counted_from + interval * np.where(self.version == 0, first, 1.0)
            spaced = self.opened_at + SPACING_SHARE * interval / pace.fragments
            due = np.maximum(due, np.maximum(self.not_before, spaced))
            due[list(self.in_flight)] = math.inf
            ready = np.flatnonzero(due <= self.now + 1e-9)
            if not len(ready):
                self._wake(float(due.min()))
                return
            self._begin(int(ready[np.argmin(self.version[ready])]), reach)

    def _begin(self, fragment: int, reach: Flags) -> None:
        """Gather a roster; an unreachable leader, or too few possible voters, make the attempt void."""
        pace, active = self.work.pace, self._active(fragment)
        self.opened_at = self.now
        self.in_flight.add(fragment)
        ready = reach & (self.ready_at[fragment] <= self.now) & (self._pending()[fragment] >= 1)
        joined, hidden = np.flatnonzero(ready), active & self.attendance.believed(pace.presence_lifetime_seconds)
        newest = self.rosters[fragment][-1] if self.rosters[fragment] else self.founders
        roster = choose(joined, newest, self.work.group_max, self.rng)
        minor = not more_than_share(int(active[roster].sum()), int(active.sum()), pace.min_share)
        patient = self.now - self.full_at[fragment] < MINOR_INTERVALS * self._interval_seconds()
        leaderless = self.rng.random() * (hidden.sum() + (reach & active).sum()) < hidden.sum()
        impossible = minor and (patient or not self.version[fragment])
        if len(joined) < pace.min_group or leaderless or impossible:
            self._push(self.now + JOIN_SHARE * pace.round_seconds, Void(fragment))
            return
        latency, grace = self.population.latency_seconds[roster], self._grace(reach)
        asked = self.now + float(2 * latency.max() + 2 * np.median(latency)) + (grace if hidden.any() else 0.0)
        steps = self.rng.random(len(roster)) / self.population.steps_per_second[roster]
        attempt = PlannedAttempt(fragment, roster, self.now, asked, minor, steps)
        if self.version[fragment] and reach.sum() > self.work.group_max and np.isin(roster, newest).any():
            until_absent = self.attendance.next_absence - self.now
            cells = CellRound(self.work, self.population, 1 / len(self.in_flight), until_absent)
            rule = ClosingRule(active, 0.0 if minor else pace.min_share * float(active.sum()), pace.quorum, grace)
            attempt = in_cells(attempt, cells, rule, joined, newest, self.rng)
        self._play(attempt)

    def _grace(self, reach: Flags) -> float:
        """Return how long a leader waits for a peer that is listed as present and does not join."""
        step_seconds = 1 / float(np.median(self.population.steps_per_second[reach]))
        waits = grace_seconds(self.work.pace, step_seconds, self.estimates)
        return min(waits, GRACE_SHARE_MAX * self.work.pace.round_seconds)

    def _play(self, attempt: PlannedAttempt) -> None:
        """Play the attempt from its roster on: who delivers in time, who is gone before the votes, and when it ends."""
        fragment, roster, start = attempt.fragment, attempt.roster, attempt.start
        deadline = self.work.pace.round_seconds * 2.0 ** min(int(self.voids[fragment]), DEADLINE_DOUBLINGS_MAX)
        members = Members.of(self.population, roster, attempt.snapshot_seconds, share=1 / len(self.in_flight))
        cost = round_cost(self.work, members)
        if self.attendance.next_absence[roster[0]] < start + cost.inputs_at.min():  # the leader leaves
            self._push(start + GONE_SHARE * deadline, Void(fragment))
            return
        end, late = start + cost.seconds, 0.0
        present = (self.attendance.next_absence[roster] > end) & (cost.inputs_at <= INPUTS_SHARE * deadline)
        if present.any() and not present.all():  # the others continue once they know
            cost, late = round_cost(self.work, members.only(present)), GONE_SHARE * deadline
            end = start + cost.seconds + late
        if slow_reducers(cost, deadline):  # the next in order compute their part again
            end = start + RECHECK_SHARE * deadline + cost.voted_after_seconds
        if end > start + deadline or not self._certifies(fragment, roster, roster[present], attempt.minor):
            self._push(start + deadline, Void(fragment))
            return
        self.sent_bits[roster[present]] += cost.sent_bits
        self.received_bits[roster[present]] += cost.received_bits
        if attempt.cell_work is not None:
            self.sent_bits += attempt.cell_work.sent_bits
            self.received_bits += attempt.cell_work.received_bits
        self._push(end, round_of(attempt, present, self.attendance))

    def _certifies(self, fragment: int, roster: Peers, voters: Peers, minor: bool) -> bool:
        active = self._active(fragment)
        if len(voters) < max(votes_needed(len(roster)), self.work.pace.min_group):
            return False
        return minor or more_than_share(int(active[voters].sum()), int(active.sum()), self.work.pace.min_share)

    def _void(self, fragment: int) -> None:
        self.in_flight.discard(fragment)
        self.voids[fragment] += 1
        self.tally.void += 1
        self.not_before[fragment] = self.now + VOID_BACKOFF_SHARE * self.work.pace.round_seconds

    def _certify(self, done: Round) -> None:
        """Certify a version: count the work in it; absent peers fetch it."""
        fragment, included, pace = done.fragment, done.included, self.work.pace
        pending = np.maximum(done.snapshots - self.counted[fragment, included], 0.0)
        stale = self.version[fragment] - self.counted_version[fragment, included] > pace.max_stale
        self._note(done, float(np.where(stale, np.minimum(pending, pace.steps_per_version), pending).sum()))
        self.in_flight.discard(fragment)
        self.counted[fragment, included] += pending
        self.version[fragment] += 1
        self.counted_version[fragment, included] = self.version[fragment]
        self.counted_from[fragment] = self.now if len(done.wards) else done.begun  # in cells, from the certificate on
        self.voids[fragment] = 0
        if done.minor:
            self.rosters[fragment].clear()
        else:
            self.full_at[fragment] = done.started
        self.rosters[fragment].append(done.roster)
        self.estimates = self.estimates.with_round(0.0, self.now - done.started)
        outside = self.attendance.reach() & (self.ready_at[fragment] <= self.now)
        outside[done.roster] = outside[done.wards] = False
        self.ready_at[fragment, done.wards] = self.now + done.supplied_seconds
        self.ready_at[fragment, done.roster] = self.now
        if outside.any():  # they hold the version before, so the step is enough
            self._fetch(np.flatnonzero(outside), range(fragment, fragment + 1), self.work.result_bits)

    def _note(self, done: Round, steps: float) -> None:
        tally, rate = self.tally, float(np.median(self.population.steps_per_second[done.included]))
        tally.interval_steps.append((done.begun - float(self.counted_from[done.fragment])) * rate)
        tally.versions += 1
        tally.minor += done.minor
        tally.steps += steps
        tally.contributions += len(done.included)
        tally.certified_at.append(self.now)
        tally.round_seconds.append(self.now - done.begun)
        tally.recovery_seconds += self.attendance.recovered(done.included, tally.since)


def choose(joined: Peers, newest: Peers, limit: int, rng: np.random.Generator) -> Peers:
    """Return a roster of joined peers, in random order: all, or as many as a group takes.

    In the latter case seven eighths are from the newest roster, so that enough of the active set is present to certify.
    """
    order = rng.permutation(joined)
    if len(order) <= limit:
        return order
    stay = order[np.isin(order, newest)][: limit - int(limit * NEW_SEATS_SHARE)]
    others = order[~np.isin(order, stay)]
    return rng.permutation(np.concatenate([stay, others[: limit - len(stay)]]))
