"""A learner with steps of varying length: the variance with which DiLoCo 2604.21428 Table 5 was measured."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, field

from coordinator.simulator.tensors import VirtualLearner


@dataclass(slots=True)
class UnevenLearner(VirtualLearner):
    """A learner with steps of log-normal lengths, as the jitter of `muster plan`, with a mean of one step at its rate.

    They are drawn once, in order, so that steps remain a function of time alone. `ends` lists the end of each step of
    this life, in mean steps.
    """

    jitter: float  # standard deviation of a step's length, as a share of the mean
    draws: random.Random
    ends: list[float] = field(default_factory=lambda: [0.0])

    @classmethod
    def of(cls, steady: VirtualLearner, jitter: float, seed: int) -> UnevenLearner:
        """Return the same learner with uneven steps; every life draws its own lengths."""
        life = steady.births[-1][1]
        return cls(
            steady.peer,
            steady.steps_per_second,
            steady.tokens_per_step,
            steady.started,
            steady.steps_before,
            steady.counted,
            steady.births,
            jitter,
            random.Random(f"{seed} {steady.peer} {life}"),
        )

    def steps(self, now: float) -> int:
        """Return inner steps so far, without those that crashes undid."""
        return int(self.steps_before) + self._made((now - self.started) * self.steps_per_second)

    def boundary_in(self, now: float) -> float:
        """Return seconds until the current step is made; 0 at rest."""
        if self.steps_per_second == 0:
            return 0.0
        passed = (now - self.started) * self.steps_per_second
        return (self.ends[self._made(passed) + 1] - passed) / self.steps_per_second

    def made_at(self, step: int) -> float:
        """Return the time at which this many steps are made."""
        count = step - int(self.steps_before)
        while len(self.ends) <= count:
            self._draw()
        moment = self.started + self.ends[count] / self.steps_per_second
        while self.steps(moment) < step:  # rounding must not put it before its own step
            moment = math.nextafter(moment, math.inf)
        return moment

    def _made(self, passed: float) -> int:
        """Return the steps of this life after the time of `passed` mean steps."""
        while self.ends[-1] <= passed:
            self._draw()
        return bisect_right(self.ends, passed) - 1

    def _draw(self) -> None:
        variance = math.log1p(self.jitter * self.jitter)  # of the logarithm
        self.ends.append(self.ends[-1] + self.draws.lognormvariate(-variance / 2, math.sqrt(variance)))
