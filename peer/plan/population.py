"""The peers of a planned swarm: their lines, their speeds, and their times of presence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rng = np.random.Generator

SESSIONS_MAX = 4096  # of one peer in one simulation
EPOCH_SECONDS = 0.0  # start of a simulation


class Absence(NamedTuple):
    """One absence of a peer. It steps again from `back_seconds` on; `kills`: it lost all since its last checkpoint."""

    peer: int
    start_seconds: float
    back_seconds: float
    kills: bool
    excused_seconds: float  # the planned part; the rest, such as a restart, counts as time lost


class Cut(NamedTuple):
    """A partition of the network: these peers reach only each other."""

    start_seconds: float
    end_seconds: float
    side: frozenset[int]


@dataclass(frozen=True, slots=True)
class Timetable:
    """The absences of peers and cuts of the network; a pure function of a plan and its seed."""

    absences: tuple[Absence, ...] = ()
    cuts: tuple[Cut, ...] = ()

    def absent_seconds(self, peers: int, seconds: float) -> tuple[Floats, Floats]:
        """Return, per peer, the seconds away before the end, and the planned part of them."""
        absent, excused = np.zeros(peers), np.zeros(peers)
        for one in self.absences:
            left = max(0.0, seconds - one.start_seconds)
            absent[one.peer] += min(one.back_seconds - one.start_seconds, left)
            excused[one.peer] += min(one.excused_seconds, left)
        return absent, excused


@dataclass(frozen=True, slots=True)
class Population:
    """The peers as arrays of one length. Rates of lines in bit/s, latency one way to the middle of the network."""

    up: Floats
    down: Floats
    latency_seconds: Floats
    steps_per_second: Floats
    dialable: Flags

    def __len__(self) -> int:
        return len(self.up)


@dataclass(frozen=True, slots=True)
class Lines:
    """One kind of access line: a share of all peers, medians, and the spread of single lines (lognormal sigma)."""

    share: float
    down_mbit: float
    up_mbit: float
    latency_seconds: float
    sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class Sessions:
    """Lengths of sessions and absences: Weibull, with one shape for both; sessions never end if the mean is 0."""

    mean_seconds: float = 0.0
    on_share: float = 1.0
    shape: float = 1.0
    kill_share: float = 0.0  # of endings; other peers drain, and lose nothing


@dataclass(frozen=True, slots=True)
class Crowd:
    """A distribution to draw peers from."""

    peers: int
    step_seconds: float
    speed_sigma: float
    lines: tuple[Lines, ...]
    undialable_share: float
    restart_seconds: float
    sessions: Sessions = field(default_factory=Sessions)

    def draw(self, rng: Rng) -> Population:
        """Draw the peers of this crowd."""
        shares = np.array([one.share for one in self.lines])
        kind = rng.choice(len(self.lines), self.peers, p=shares / shares.sum())
        spread = np.exp(np.array([one.sigma for one in self.lines])[kind] * rng.standard_normal(self.peers))
        medians = np.array([(one.up_mbit, one.down_mbit, one.latency_seconds) for one in self.lines])[kind]
        speed = np.exp(self.speed_sigma * rng.standard_normal(self.peers)) / self.step_seconds
        return Population(
            up=medians[:, 0] * 1e6 * spread,
            down=medians[:, 1] * 1e6 * spread,
            latency_seconds=medians[:, 2],
            steps_per_second=speed,
            dialable=rng.random(self.peers) >= self.undialable_share,
        )

    def absences(self, rng: Rng, seconds: float) -> tuple[Absence, ...]:
        """Draw all absences: every peer's sessions, begun long before the start, cut out of one long life."""
        plan = self.sessions
        if plan.mean_seconds <= 0 or plan.on_share >= 1:
            return ()
        absence_mean = plan.mean_seconds * (1 / plan.on_share - 1)
        found: list[Absence] = []
        for peer in range(self.peers):
            now = -rng.random() * (plan.mean_seconds + absence_mean) * 2
            for _ in range(SESSIONS_MAX):
                ends = now + _weibull(rng, plan.mean_seconds, plan.shape)
                back = ends + _weibull(rng, absence_mean, plan.shape)
                if ends >= seconds:
                    break
                if back > 0:
                    start = max(ends, EPOCH_SECONDS)
                    kills = bool(rng.random() < plan.kill_share) and ends > 0
                    found.append(Absence(peer, start, back + self.restart_seconds, kills, back - start))
                now = back
        return _without_overlap(found)


def _weibull(rng: Rng, mean: float, shape: float) -> float:
    return float(mean / math.gamma(1 + 1 / shape) * rng.weibull(shape))


def _without_overlap(absences: Sequence[Absence]) -> tuple[Absence, ...]:
    """Merge absences that overlap: a peer that leaves again before it is back is absent longer."""
    found: list[Absence] = []
    for one in sorted(absences, key=lambda one: (one.peer, one.start_seconds)):
        last = found[-1] if found and found[-1].peer == one.peer else None
        if last is not None and one.start_seconds <= last.back_seconds:
            joined = max(last.back_seconds, one.back_seconds)
            excused = last.excused_seconds + one.excused_seconds
            found[-1] = last._replace(back_seconds=joined, kills=last.kills or one.kills, excused_seconds=excused)
        else:
            found.append(one)
    return tuple(sorted(found, key=lambda one: one.start_seconds))
