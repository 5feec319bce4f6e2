"""The options of a lab run: the run itself, its learners, their speeds, and the faults."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from coordinator.run.changes import changed_values, checked_run, with_changes
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, RunConfig
from dht.errors import UsageError
from peer.attacks.zoo import AttackOrder
from peer.machine.local_files import NO_FILES, LocalFiles

STEP_SECONDS = 8.0  # virtual time of one step at rate 1; a power of two, so that times of steps are exact
ROUND_STEPS = 8  # a round's deadline; presence and its lifetime below keep the proportions of `PaceSpec`
PRESENCE_STEPS = 3
PRESENCE_LIFETIME_STEPS = 9
STEPS_MAX = 10**6
SLOW_SPEED = 1 / 1.18  # DiLoCo 2604.21428, Table 5: half of the learners 18 % behind
NAMED_SPEEDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"equal": (1.0,), "two_generations": (1.0, SLOW_SPEED), "octaves": (1.0, 2.0, 4.0, 8.0)}
)


@dataclass(frozen=True, slots=True)
class Failures:
    """Deaths of learners after exponentially distributed times; they return with their last checkpoint."""

    mean_steps_between: float  # of one learner
    absence_steps: float

    @classmethod
    def parse(cls, text: str) -> Failures:
        """Parse `MTBI:RETURN`; raises UsageError."""
        between, absence = _numbers("--failures", text, "MTBI:RETURN", 2)
        if between < 1:
            raise UsageError("--failures: learners must live for at least one step on average")
        return cls(between, absence)


@dataclass(frozen=True, slots=True)
class Scavenge:
    """Learners that take part only for a while."""

    learners: int
    first_step: float
    last_step: float

    @classmethod
    def parse(cls, text: str) -> Scavenge:
        """Parse `N:FROM:TO`; raises UsageError."""
        count, first, last = _numbers("--scavenge", text, "N:FROM:TO", 3)
        if count != int(count) or first >= last:
            raise UsageError(f"--scavenge {text!r} is not of the form N:FROM:TO with FROM before TO, as in 4:100:500")
        return cls(int(count), first, last)


Reunion = Literal["carry", "drop", "uncut"]
"""What happens to the losing side's versions; peers do `carry`, and `uncut` never separates the sides."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition that cuts the last learners off from the others for a while."""

    learners: int
    first_step: int
    last_step: int
    reunion: Reunion = "carry"
    own_text: bool = False  # each side reads, and is evaluated on, packages that the other never reads

    @classmethod
    def parse(cls, text: str, reunion: Reunion, own_text: bool) -> Partition:
        """Parse `N:FROM:TO`; raises UsageError."""
        numbers = _numbers("--partition", text, "N:FROM:TO", 3)
        count, first, last = map(int, numbers)
        if count + first + last != sum(numbers) or not 0 < first < last:
            raise UsageError(f"--partition {text!r} is not of the form N:FROM:TO with FROM before TO, as in 2:100:200")
        return cls(count, first, last, reunion, own_text)


@dataclass(frozen=True, slots=True)
class LabOptions:
    """The options of one lab run. `config` is complete; `speeds` are relative, and repeat over the learners.

    Wherever steps measure time, they are those of the learner that sets the pace (design §6.2 step 1).
    """

    config: RunConfig
    learners: int = 4
    steps: int = 400
    speeds: tuple[float, ...] = (1.0,)
    speed_jitter: float = 0.0  # standard deviation of a step's length, as a share of the mean
    adoption_delay_steps: float = 2.0
    failures: Failures | None = None
    scavenge: Scavenge | None = None
    partition: Partition | None = None
    attacks: tuple[AttackOrder, ...] = ()
    dirichlet_alpha: float | None = None
    late_joins: bool = False  # learners join at their next step boundary, as in the paper's Alg. 1
    eval_every_steps: int = 100
    workers: int = 0  # threads that make inner steps; 0: one per core
    device: str = "cpu"  # torch's name of the device that makes steps
    compiled: bool | None = None  # as `join --compile`; None: on a GPU
    cache: str = ""  # where tokens of text are kept between runs
    files: LocalFiles = NO_FILES  # those that the run reads, for its tape

    def __post_init__(self) -> None:
        if not 1 <= self.total_learners <= PEERS_PER_GROUP_MAX:
            raise UsageError(f"a lab has 1 to {PEERS_PER_GROUP_MAX} learners, not {self.total_learners}")
        if not 1 <= self.steps <= STEPS_MAX:
            raise UsageError(f"a lab run has 1 to {STEPS_MAX} steps, not {self.steps}")
        if not all(0 < speed < math.inf for speed in self.speeds):
            raise UsageError("--speeds must be more than 0")
        if not 0 <= self.speed_jitter <= 1:
            raise UsageError("--speed-jitter is a share, from 0 to 1")
        if self.dirichlet_alpha is not None and not 0 < self.dirichlet_alpha < math.inf:
            raise UsageError("--noniid must be more than 0")
        if not 0 <= self.adoption_delay_steps < self.config.pace.steps_per_version:
            raise UsageError(
                f"--adoption-delay-steps must be below the period of {self.config.pace.steps_per_version} steps"
            )
        if self.partition is not None:
            self._check_partition(self.partition)
        if self.attackers >= self.learners:
            raise UsageError(f"{self.attackers} attackers leave none of {self.learners} learners honest")

    def _check_partition(self, partition: Partition) -> None:
        if not (partition.learners < self.learners and partition.last_step <= self.steps):
            raise UsageError("--partition must leave learners on both sides, and end before the run does")
        if partition.own_text and self.dirichlet_alpha is not None:
            raise UsageError("--own-text deals the text out by side, --noniid by learner: choose one")
        if self.scavenge is not None:
            raise UsageError("--partition and --scavenge do not go together: a side is some of the founders")

    @property
    def second_side(self) -> int:
        """Number of the last learners that have text of their own."""
        return self.partition.learners if self.partition is not None and self.partition.own_text else 0

    @property
    def total_learners(self) -> int:
        return self.learners + (self.scavenge.learners if self.scavenge is not None else 0)

    @property
    def attackers(self) -> int:
        return sum(order.count for order in self.attacks)

    @property
    def hostile(self) -> range:
        """The numbers of the attackers: the last of the learners, before those that scavenge."""
        return range(self.learners - self.attackers, self.learners)

    @property
    def threads(self) -> int:
        return self.workers or min(len(os.sched_getaffinity(0)), self.total_learners)

    @property
    def compiles(self) -> bool:
        """Whether torch compiles learners' models."""
        return self.device != "cpu" if self.compiled is None else self.compiled

    def rates(self) -> list[float]:
        """Return steps per virtual second, by learner. The pace setter makes one step per `STEP_SECONDS`."""
        speeds = [self.speeds[number % len(self.speeds)] for number in range(self.total_learners)]
        pace_setter = sorted(speeds[: self.learners], reverse=True)[(self.learners - 1) // 2]  # as in `due_time`
        return [speed / pace_setter / STEP_SECONDS for speed in speeds]


def lab_config(base: RunConfig, learners: int, steps: int, changes: Mapping[str, object]) -> RunConfig:
    """Return `base` for a lab of this size, with `changes` by dotted key (None: no change); raises UsageError."""
    values = changed_values(base, changes)
    pace = values["pace"]
    values["versions"] = max(1, round(steps * pace["fragments"] / max(pace["steps_per_version"], 1)))
    pace["min_group"] = max(1, min(pace["min_group"], pace["quorum"], learners))
    pace["round_seconds"] = ROUND_STEPS * STEP_SECONDS
    pace["presence_seconds"] = PRESENCE_STEPS * STEP_SECONDS
    pace["presence_lifetime_seconds"] = PRESENCE_LIFETIME_STEPS * STEP_SECONDS
    return checked_run(values)


def run_steps(base: RunConfig, changes: Mapping[str, object]) -> int:
    """Return each learner's steps in the whole run; if `changes` set its versions, at their pace. Raises UsageError."""
    keys = () if changes.get("versions") is None else ("versions", "pace.steps_per_version", "pace.fragments")
    run = with_changes(base, {key: changes.get(key) for key in keys})
    return run.versions * run.pace.steps_per_version // run.pace.fragments


def sequences_per_step(base: RunConfig, changes: Mapping[str, object], batch_tokens: int) -> int:
    """Return how many sequences, of the changed length, make up this batch of one learner; raises UsageError."""
    key = "data.context_tokens"
    context = with_changes(base, {key: changes.get(key)}).data.context_tokens
    if batch_tokens < context or batch_tokens % context:
        raise UsageError(f"--batch-tokens must be a multiple of the context of {context} tokens")
    return batch_tokens // context


def parse_speeds(text: str) -> tuple[float, ...]:
    """Parse a name in `NAMED_SPEEDS`, or rates separated by commas; raises UsageError."""
    if text in NAMED_SPEEDS:
        return NAMED_SPEEDS[text]
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--speeds is {', '.join(NAMED_SPEEDS)} or a list as in 1,2,4,8, not {text!r}") from None


def _numbers(option: str, text: str, form: str, count: int) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(":"))
    except ValueError:
        found = ()
    if len(found) != count or not all(0 <= number <= STEPS_MAX for number in found) or not found[0] > 0:
        raise UsageError(f"{option} {text!r} is not of the form {form} in numbers")
    return found
