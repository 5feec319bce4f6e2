"""Counts of a learner's work: what no certified version holds yet, and the totals of its reports."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from coordinator.chain.passes import next_window
from peer.learner.messages import Steps

RATE_WEIGHT = 0.2  # of a new report in the moving averages of rate and loss
STEPS_TIMED_MIN = 5  # before a step time is given, as the first report includes much preparation


@dataclass(frozen=True, slots=True)
class Counters:
    """The work in a fragment that no certified version holds yet; its data are the last `window_count` windows."""

    steps: int
    tokens: int
    window_first: int
    window_count: int
    at_step: int = field(default=0, compare=False)  # steps in all


class LocalCount:
    """Steps, tokens and data windows of one model replica, in all, and per fragment since the last counted snapshot."""

    def __init__(self, fragments: int) -> None:
        self.steps = 0
        self.tokens = 0
        self.window = 0
        self.counted_from = [[0, 0] for _ in range(fragments)]  # steps and tokens at the last counted snapshot

    def step(self, tokens: int) -> None:
        """Count one more step, on one more window."""
        self.steps += 1
        self.tokens += tokens
        self.window += 1

    def read_from(self, first: int) -> None:
        """Go on with the lane that begins at window `first`, unless it is already being read."""
        self.window = next_window(self.window, first)

    def of(self, fragment: int) -> Counters:
        """Return the steps and tokens in this fragment that are not counted yet, and their data windows."""
        steps_before, tokens_before = self.counted_from[fragment]
        steps = self.steps - steps_before
        return Counters(steps, self.tokens - tokens_before, self.window - steps, steps, self.steps)

    def count(self, fragment: int, steps: int, tokens: int) -> None:
        """Mark this much of the fragment's work as part of a certified version."""
        steps_before, tokens_before = self.counted_from[fragment]
        self.counted_from[fragment] = [min(steps_before + steps, self.steps), min(tokens_before + tokens, self.tokens)]

    def restart(self, fragment: int) -> None:
        """Mark all work in the fragment so far as gone."""
        self.counted_from[fragment] = [self.steps, self.tokens]


class LearnerProgress:
    """The totals and averages of the learner's reports."""

    def __init__(self) -> None:
        self.device = self.use = ""  # readable: the device that the learner uses, and how
        self.steps = 0
        self.tokens = 0
        self.loss: float | None = None
        self.steps_per_second = 0.0
        self.cpu_seconds = 0.0
        self.skipped = 0  # steps of this process that changed nothing
        self.first_at: float | None = None
        self.last_at = 0.0
        self._window: deque[tuple[float, int]] = deque(maxlen=20)
        self._busy_seconds = 0.0  # inside steps, as reported last
        self._cpu_seconds_before = 0.0  # of earlier processes
        self._step_seconds: deque[float] = deque(maxlen=20)

    def begin(self, step: int, device: str, use: str) -> None:
        """Start counting for a process that has already made `step` steps, perhaps as successor of one that ended."""
        self.steps, self.device, self.use = step, device, use
        self._cpu_seconds_before, self._busy_seconds, self.skipped = self.cpu_seconds, 0.0, 0
        self.rest()
        self._step_seconds.clear()

    def report(self, steps: Steps, now: float) -> None:
        """Add one report of the learner."""
        self.cpu_seconds = self._cpu_seconds_before + steps.cpu_seconds
        if not steps.entries:
            return
        if self.first_at is None:
            self.first_at = now
        self.last_at = now
        self.skipped = steps.skipped
        steps_before = self.steps
        for entry in steps.entries:
            self.steps = entry.step
            self.tokens += entry.tokens
            if entry.loss is not None:
                self.loss = entry.loss if self.loss is None else self.loss + RATE_WEIGHT * (entry.loss - self.loss)
        if self.steps > steps_before:
            self._step_seconds.append((steps.busy_seconds - self._busy_seconds) / (self.steps - steps_before))
        self._busy_seconds = steps.busy_seconds
        self._window.append((now, self.steps))
        since, steps_then = self._window[0]
        if now > since:
            self.steps_per_second = (self.steps - steps_then) / (now - since)

    @property
    def training_seconds(self) -> float:
        """Wall time between the first and the last step reported."""
        return 0.0 if self.first_at is None else self.last_at - self.first_at

    @property
    def step_seconds(self) -> float | None:
        """The median time of recent steps, in seconds; None while it is not known."""
        return median(self._step_seconds) if len(self._step_seconds) >= STEPS_TIMED_MIN else None

    def rest(self) -> None:
        """Forget the rate, because the learner makes no steps now."""
        self.steps_per_second = 0.0
        self._window.clear()

    def change_threads(self, before: str, after: str) -> None:
        """Forget the step times; `before` and `after` are the names of the CPU with its number of threads."""
        self._step_seconds.clear()
        if self.device == before:
            self.device = after
