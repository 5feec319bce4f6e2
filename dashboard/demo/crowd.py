"""Invented peers beside the simulated ones: each is a pure function of seed, number and virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.views.network_view import Line
from dashboard.demo.people import Person
from dashboard.demo.story import PACE, STEPS_PER_SECOND

STEADY_SHARE = 0.7  # of the crowd is always there
GROUPS_KEPT = 256
OFF_SHARE, PAUSED_SHARE = 0.3, 0.3  # of an unsteady peer's time
CYCLE_SECONDS = (150.0, 500.0)


@dataclass(frozen=True)
class Appearance:
    """One peer of the crowd at one moment."""

    live: bool
    state: Line
    note: Line
    behind: int
    silent_seconds: float

    @property
    def trains(self) -> bool:
        return self.live and self.state == "training"


@dataclass(frozen=True)
class Extra:
    """One peer of the crowd: when it joined, and how it comes and goes."""

    person: Person
    steady: bool
    joined_at: float
    cycle_seconds: float
    shift_seconds: float

    @property
    def steps_per_second(self) -> float:
        return STEPS_PER_SECOND * self.person.speed

    def appearance(self, at: float) -> Appearance:
        """Return its appearance at this virtual time."""
        if self.steady:
            return Appearance(True, "training", "", 0, 1.0)
        phase = (at + self.shift_seconds) % self.cycle_seconds / self.cycle_seconds
        if phase < OFF_SHARE:
            return Appearance(False, "training", "", 0, phase * self.cycle_seconds)
        if phase < OFF_SHARE + 0.05:
            return Appearance(True, "catching up", "fetching fragments", PACE.fragments, 1.0)
        if phase > 1 - PAUSED_SHARE:
            return Appearance(True, "paused", "on battery", 0, 1.0)
        return Appearance(True, "training", "", 0, 1.0)

    def steps(self, at: float) -> int:
        """Return its inner steps so far; an unsteady peer trains only part of the time."""
        share = 1.0 if self.steady else 1 - OFF_SHARE - PAUSED_SHARE
        return int(max(0.0, at - self.joined_at) * self.steps_per_second * share)


@dataclass
class DemoCrowd:
    """The invented peers, and the groups that they were in."""

    extras: tuple[Extra, ...]
    seed: int
    groups: dict[tuple[int, int], tuple[Extra, ...]] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """The most peers of the crowd in one group."""
        return min(len(self.extras), PEERS_PER_GROUP_MAX // 2)

    def assign(self, fragment: int, version: int, at: float) -> None:
        """Choose the peers of the crowd in the group that makes this version, once."""
        if (fragment, version) in self.groups:
            return
        ready = [one for one in self.extras if one.appearance(at).trains]
        draw = Random(f"group {fragment} {version} of {self.seed}")
        self.groups[fragment, version] = tuple(draw.sample(ready, min(self.slots, len(ready))))
        if len(self.groups) > GROUPS_KEPT:
            del self.groups[next(iter(self.groups))]

    def members(self, fragment: int, version: int) -> tuple[Extra, ...]:
        """Return the peers of the crowd in the group that makes this version."""
        return self.groups.get((fragment, version), ())

    def steps_per_turn(self, extra: Extra) -> int:
        """Return the mean steps between two of its turns on a fragment, which its contribution certifies."""
        turns = max(1.0, len(self.extras) / max(1, self.slots))
        return int(PACE.steps_per_version * turns * extra.person.speed)


def make_crowd(people: Sequence[Person], seed: int) -> DemoCrowd:
    """Make the crowd of these people."""
    return DemoCrowd(tuple(_extra(number, person, seed) for number, person in enumerate(people)), seed)


def _extra(number: int, person: Person, seed: int) -> Extra:
    draw = Random(f"crowd {number} of {seed}")
    cycle = draw.uniform(*CYCLE_SECONDS)
    return Extra(
        person=person,
        steady=draw.random() < STEADY_SHARE,
        joined_at=-draw.uniform(60.0, 3000.0),
        cycle_seconds=cycle,
        shift_seconds=draw.uniform(0.0, cycle),
    )
