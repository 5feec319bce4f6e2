"""The machines of a planned run: chips that fail, slices that leave and return, and learners made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dht.errors import UsageError
from dht.units import DAY_SECONDS

SECONDS_PER_YEAR = 365.25 * DAY_SECONDS
CHIPS_MAX = 100_000_000
LEARNERS_MAX = 4096
ABSENCE_SHAPE, ABSENCE_EXPONENT = 1.0, 2.0  # ours: the paper names only the family
ABSENCE_MEAN_SECONDS = 75.0
MEAN_POINTS = 4096  # quantiles to compute the mean of a distribution that has no closed form

Floats = npt.NDArray[np.float64]
Method = Literal["decoupled", "elastic", "rigid"]


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise UsageError(sentence)


@dataclass(frozen=True, slots=True)
class ExponentiatedWeibull:
    """Delays with P(delay <= x) = (1 - exp(-(x / scale_seconds) ** shape)) ** exponent (DiLoCo 2604.21428 §3.3)."""

    scale_seconds: float
    shape: float
    exponent: float

    def __post_init__(self) -> None:
        _require(
            all(0 < value < math.inf for value in (self.scale_seconds, self.shape, self.exponent)),
            "the delay until a slice returns needs a scale, a shape and an exponent above 0",
        )

    @classmethod
    def with_mean(cls, mean_seconds: float, shape: float, exponent: float) -> ExponentiatedWeibull:
        """Return the distribution of this form with this mean."""
        return cls(mean_seconds / cls(1.0, shape, exponent).mean_seconds(), shape, exponent)

    def quantile(self, probability: Floats) -> Floats:
        """Return the delays in seconds that are not exceeded with these probabilities, each in [0, 1)."""
        hazard: Floats = -np.log1p(-(probability ** (1.0 / self.exponent)))
        delays: Floats = self.scale_seconds * hazard ** (1.0 / self.shape)
        return delays

    def mean_seconds(self) -> float:
        """Return the mean delay, to about one part in a thousand."""
        return float(self.quantile((np.arange(MEAN_POINTS) + 0.5) / MEAN_POINTS).mean())


ABSENCE = ExponentiatedWeibull.with_mean(ABSENCE_MEAN_SECONDS, ABSENCE_SHAPE, ABSENCE_EXPONENT)


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations. The paper publishes none of them; the defaults fit its Table 1 (docs/how-to/plan.md)."""

    step_seconds: float = 10.0
    down_seconds: float = 13.0  # a learner's pause to continue without a slice
    up_seconds: float = 13.0  # and to add one again
    absence: ExponentiatedWeibull = ABSENCE
    slice_chips: int = 1024

    def __post_init__(self) -> None:
        _require(0 < self.step_seconds < math.inf, "a step must last more than 0 seconds")
        _require(
            0 <= self.down_seconds < math.inf and 0 <= self.up_seconds < math.inf,
            "leaving a slice out, or taking it in again, cannot last less than 0 seconds",
        )
        _require(1 <= self.slice_chips <= CHIPS_MAX, f"a slice has 1 to {CHIPS_MAX} chips")


@dataclass(frozen=True, slots=True)
class Speeds:
    """Differences in speed; spreads are relative standard deviations of log-normal step times with mean 1."""

    slowdowns: tuple[float, ...] = ()  # step time of the first learners, as a multiple of the others'
    chip_spread: float = 0.0  # among chips, permanently: a learner is as slow as its slowest chip
    jitter: float = 0.0  # of a learner from one step to the next

    def __post_init__(self) -> None:
        _require(
            all(0 < slowdown < math.inf for slowdown in self.slowdowns),
            "a learner's step time as a multiple of the others' must be above 0",
        )
        _require(0 <= self.chip_spread <= 1 and 0 <= self.jitter <= 1, "a spread of speeds lies between 0 and 1")


@dataclass(frozen=True, slots=True)
class Sync:
    """The rules by which the outer loop makes a learner wait (DiLoCo 2604.21428 §3.2)."""

    quorum: int = 1  # K: learners that must have reported before a merge
    overlap_steps: int = 2  # τ: steps a learner takes, after one it reported, before it waits for that one's merge
    grace_steps: float = 0.0  # how long a merge waits after its quorum, in step times

    def __post_init__(self) -> None:
        _require(self.quorum >= 1, "a quorum is at least 1 learner")
        _require(self.overlap_steps >= 0, "the overlap cannot be less than 0 steps")
        _require(0 <= self.grace_steps <= self.overlap_steps, "a grace window lasts between 0 steps and the overlap")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal learners that share all chips. `elastic` and `rigid` data-parallel are one learner each.

    A rigid learner waits until every slice is present; the others continue with the slices left. Raises UsageError if
    the numbers are impossible.
    """

    chips: int
    learners: int = 1
    method: Method = "decoupled"
    mtbi_years: float = 1.0  # mean time between interruptions of one chip
    timing: Timing = Timing()
    speeds: Speeds = Speeds()
    sync: Sync = Sync()

    def __post_init__(self) -> None:
        _require(self.method in get_args(Method), f"the method is one of {', '.join(get_args(Method))}")
        _require(1 <= self.learners <= LEARNERS_MAX, f"there can be 1 to {LEARNERS_MAX} learners")
        _require(self.learners <= self.chips <= CHIPS_MAX, f"there can be one chip per learner to {CHIPS_MAX} chips")
        _require(0 < self.mtbi_years < math.inf, "the time between interruptions of a chip must be above 0 years")
        _require(self.sync.quorum <= self.learners, "the quorum cannot be larger than the number of learners")
        _require(len(self.speeds.slowdowns) <= self.learners, "there are more slow learners than learners")
        _require(self.method == "decoupled" or self.learners == 1, "data-parallel training is one learner")

    @property
    def slices(self) -> int:
        """Number of slices of one learner: as close to `slice_chips` chips each as equal slices allow."""
        return max(1, round(self.chips / self.learners / self.timing.slice_chips))

    @property
    def slices_needed(self) -> int:
        """Fewest slices with which a learner makes steps."""
        return self.slices if self.method == "rigid" else 1

    @property
    def failures_per_slice_second(self) -> float:
        """Rate at which chips of one slice fail."""
        return self.chips / (self.learners * self.slices) / (self.mtbi_years * SECONDS_PER_YEAR)

    def step_seconds(self, rng: np.random.Generator) -> Floats:
        """Return the step time of each learner, shape [learners]; a learner is as slow as its slowest chip."""
        seconds = np.full(self.learners, float(self.timing.step_seconds))
        seconds[: len(self.speeds.slowdowns)] *= self.speeds.slowdowns
        spread = self.speeds.chip_spread
        if spread:
            for learner, share in enumerate(np.diff(np.arange(self.learners + 1) * self.chips // self.learners)):
                seconds[learner] *= log_normal(spread, int(share), rng).max()
        return seconds


def log_normal(spread: float, count: int, rng: np.random.Generator) -> Floats:
    """Return `count` factors with mean 1 and, for small spreads, this standard deviation."""
    return rng.lognormal(-0.5 * spread * spread, spread, count)
