"""The discrete-event simulator: learners that step, lose slices, pause, and wait for merges, many clusters at once.

Time is cut into independent `stretches`, each one cluster from its start. Only merges connect learners. With a quorum
of one and no grace window no merge makes a learner wait. Then all learners of all stretches take their next event at
once. Otherwise all stretches do, in the order of their own clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peer.plan.chips import Cluster, Floats, log_normal

STEPPING, PAUSED, WAITING = 0, 1, 2
ABSENT_START = 4  # capacity for absent slices, per learner; doubled when full

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Spells in which one learner stepped without a break; all three of shape [runs], times in seconds."""

    stretch: Integers
    start: Floats
    end: Floats


class Stretches:
    """`count` independent copies of a cluster, each from time 0 with every slice present.

    After `play(until)`, `useful_seconds` holds the learners' stepping time of each stretch between `count_from` and
    `until`, weighted by the share of slices that took part. `runs()` then returns the spells of stepping.
    """

    def __init__(self, cluster: Cluster, count: int, count_from: float, rng: np.random.Generator) -> None:
        self._cluster, self._rng, self._from, self._until = cluster, rng, count_from, count_from
        self._step_seconds = cluster.step_seconds(rng)
        self._slice_fails = -np.expm1(-cluster.failures_per_slice_second * self._step_seconds)  # chance in one step
        self._slices = cluster.slices
        self._coupled = cluster.sync.quorum > 1 or cluster.sync.grace_steps > 0
        shape = (count, cluster.learners)
        self._phase = np.full(shape, STEPPING, dtype=np.int8)
        self._next = np.zeros(shape)  # when each learner's step or pause ends; infinite while it waits for a merge
        self._merge_at = np.full(count, np.inf)
        self._ahead = np.zeros(shape, dtype=np.int64)  # steps reported and not merged yet
        self._missing = np.zeros(shape, dtype=np.int64)  # slices left out
        self._return_at = np.full((*shape, ABSENT_START), np.inf)
        self._since = np.zeros(shape)  # start of the current run of steps
        self._runs: list[tuple[Integers, Floats, Floats]] = []
        self.useful_seconds = np.zeros(count)
        self.merges = 0
        self.reports_merged = 0

    def play(self, until: float) -> None:
        """Simulate every stretch from 0 up to this time; call it once."""
        self._until = until
        everyone = np.nonzero(self._next == 0)
        self._start_steps(everyone[0], everyone[1], np.zeros(everyone[0].size))
        while True:
            now = np.minimum(self._next.min(axis=1), self._merge_at)
            due = (self._next < until) & (not self._coupled or self._next <= now[:, None])
            merging = np.flatnonzero((self._merge_at < until) & (self._merge_at <= now) & ~due.any(axis=1))
            if not due.any() and not merging.size:
                break
            self._reach_boundary(*np.nonzero(due))
            if self._coupled:
                self._call_merges(now)
                self._merge(merging)
        lanes, learners = np.nonzero(self._phase == STEPPING)
        self._end_runs(lanes, learners, np.full(lanes.size, until))

    def runs(self) -> Runs:
        """Return every spell of uninterrupted stepping, in no order; the last ones end at `until`."""
        stretch, start, end = (np.concatenate(column) for column in zip(*self._runs, strict=True))
        return Runs(stretch, start, end)

    def _reach_boundary(self, lanes: Integers, learners: Integers) -> None:
        """End a step or a pause of these learners: count failed and returned slices, then continue."""
        now = self._next[lanes, learners]
        stepped = self._phase[lanes, learners] == STEPPING
        self._ahead[lanes, learners] += stepped
        failed = self._fail(lanes, learners, stepped)
        returned = self._take_back(lanes, learners, now)
        missing = self._missing[lanes, learners] + failed - returned
        self._missing[lanes, learners] = missing
        timing = self._cluster.timing
        # One reconfiguration serves everything that happened since the last one.
        pause = np.maximum((failed > 0) * timing.down_seconds, (returned > 0) * timing.up_seconds)
        short = np.flatnonzero(self._slices - missing < self._cluster.slices_needed)
        if short.size:
            pause[short] = self._until_enough(lanes[short], learners[short]) - now[short]
        waits = (pause == 0) & (self._ahead[lanes, learners] > self._cluster.sync.overlap_steps) & self._coupled
        stops = stepped & ((pause > 0) | waits)
        self._end_runs(lanes[stops], learners[stops], now[stops])
        self._phase[lanes, learners] = np.where(pause > 0, PAUSED, WAITING)
        self._next[lanes, learners] = np.where(pause > 0, now + pause, np.inf)
        goes = (pause == 0) & ~waits
        fresh = goes & ~stepped
        self._since[lanes[fresh], learners[fresh]] = now[fresh]
        self._start_steps(lanes[goes], learners[goes], now[goes])

    def _start_steps(self, lanes: Integers, learners: Integers, now: Floats) -> None:
        seconds = self._step_seconds[learners]
        if self._cluster.speeds.jitter:
            seconds = seconds * log_normal(self._cluster.speeds.jitter, lanes.size, self._rng)
        end = now + seconds
        counted = np.clip(np.minimum(end, self._until) - np.maximum(now, self._from), 0.0, None)
        share = 1.0 - self._missing[lanes, learners] / self._slices
        np.add.at(self.useful_seconds, lanes, counted * share)
        self._phase[lanes, learners] = STEPPING
        self._next[lanes, learners] = end

    def _fail(self, lanes: Integers, learners: Integers, stepped: npt.NDArray[np.bool_]) -> Integers:
        """Return how many slices of each learner lost a chip in the step that ends; draws their return times.

        The paper's chips fail per step, so a learner that pauses loses nothing more (DiLoCo 2604.21428 §3.3).
        """
        exposed = np.where(stepped, self._slices - self._missing[lanes, learners], 0)
        failed = self._rng.binomial(exposed, self._slice_fails[learners]).astype(np.int64)
        now = self._next[lanes, learners]
        for nth in range(int(failed.max(initial=0))):
            hit = np.flatnonzero(failed > nth)
            where = lanes[hit], learners[hit]
            slot = self._return_at[where].argmax(axis=1)
            if np.isfinite(self._return_at[(*where, slot)]).any():
                self._return_at = np.concatenate([self._return_at, np.full_like(self._return_at, np.inf)], axis=2)
                slot = self._return_at[where].argmax(axis=1)
            delay = self._cluster.timing.absence.quantile(self._rng.random(hit.size))
            self._return_at[(*where, slot)] = now[hit] + delay
        return failed

    def _take_back(self, lanes: Integers, learners: Integers, now: Floats) -> Integers:
        """Return how many slices of each learner are back by now."""
        back = self._return_at[lanes, learners] <= now[:, None]
        which, slot = np.nonzero(back)
        self._return_at[lanes[which], learners[which], slot] = np.inf
        returned: Integers = back.sum(axis=1)
        return returned

    def _until_enough(self, lanes: Integers, learners: Integers) -> Floats:
        """Return when enough slices are back: all of a rigid learner's, otherwise the first one."""
        times = self._return_at[lanes, learners]
        if self._cluster.method == "rigid":
            times = np.where(np.isfinite(times), times, -np.inf)
            return np.asarray(times.max(axis=1))
        return np.asarray(times.min(axis=1))

    def _call_merges(self, now: Floats) -> None:
        """Set the merge time where a quorum has reported: after the grace window, or now if all have reported."""
        sync = self._cluster.sync
        reported = (self._ahead > 0).sum(axis=1)
        grace_seconds = sync.grace_steps * self._cluster.timing.step_seconds
        opens = (reported >= sync.quorum) & np.isinf(self._merge_at)
        self._merge_at = np.where(opens, now + grace_seconds, self._merge_at)
        complete = reported == self._cluster.learners
        self._merge_at = np.where(complete, np.minimum(self._merge_at, now), self._merge_at)

    def _merge(self, lanes: Integers) -> None:
        """Close the round of these stretches, and release all learners that waited for it."""
        ahead = self._ahead[lanes]
        self.merges += lanes.size
        self.reports_merged += int((ahead > 0).sum())
        self._ahead[lanes] = ahead = np.maximum(ahead - 1, 0)
        now = self._merge_at[lanes]
        self._merge_at[lanes] = np.inf
        row, learners = np.nonzero((self._phase[lanes] == WAITING) & (ahead <= self._cluster.sync.overlap_steps))
        self._since[lanes[row], learners] = now[row]
        self._start_steps(lanes[row], learners, now[row])

    def _end_runs(self, lanes: Integers, learners: Integers, now: Floats) -> None:
        if lanes.size:
            self._runs.append((lanes, self._since[lanes, learners], now))
