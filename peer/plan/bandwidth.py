"""The link a run needs for a given compute utilisation, and the utilisation a given link allows.

Compute utilisation is compute time over compute plus exposed communication time (DiLoCo 2604.21428 App. E.4). Both
closed forms are ours, found by fitting the paper's Table 13; `docs/how-to/plan.md` shows every cell. They leave out
lost packets, congestion, other traffic, and CPUs busy with coding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from dht.errors import UsageError

LinkKind = Literal["ring", "butterfly", "home"]
BACKWARD_SHARE = 2 / 3  # of a step; data-parallel training sends its gradients meanwhile
HIDDEN_LESS_STEPS = 0.5  # fitted: with an overlap of τ steps, τ - 0.5 steps of a fragment's transfer cost no time
# Fitted: Table 13 counts 1 % of the model per step with H = 24, so the whole model once in 100 / 24 periods.
PAPER_PERIODS_PER_MODEL = 100 / 24
HOME_GROUP = 16
HOME_USABLE_SHARE = 0.8  # of a home's uplink; the rest is for its residents
BITS_PER_GBIT = 1e9


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise UsageError(sentence)


@dataclass(frozen=True, slots=True)
class SiteLink:
    """The lines between the sites. Rates are of one direction of one site's own line: for a home, its uplink.

    `ring` passes every part around all sites twice. `butterfly` has every site reduce one part and send it to all:
    the same bytes in two hops. `home` is a butterfly in groups of at most `home_group`, on a part of each uplink.
    """

    sites: int
    kind: LinkKind = "ring"
    latency_seconds: float = 0.0  # one way
    home_group: int = HOME_GROUP

    def __post_init__(self) -> None:
        _require(self.kind in get_args(LinkKind), f"the link is one of {', '.join(get_args(LinkKind))}")
        _require(self.sites >= 1, "there is at least 1 site")
        _require(0 <= self.latency_seconds < math.inf, "latency cannot be less than 0 seconds")
        _require(self.home_group >= 1, "a group has at least 1 member")

    @property
    def members(self) -> int:
        """Number of sites that reduce together."""
        return min(self.sites, self.home_group) if self.kind == "home" else self.sites

    @property
    def traffic_factor(self) -> float:
        """How often a payload crosses each line in each direction to be reduced: 2 (n - 1) / n."""
        return 2 * (self.members - 1) / self.members

    @property
    def hop_seconds(self) -> float:
        """Latency of one all-reduce."""
        if self.members == 1:
            return 0.0
        return self.latency_seconds * (2 * (self.members - 1) if self.kind == "ring" else 2)

    @property
    def usable_share(self) -> float:
        """Share of the line that training may use."""
        return HOME_USABLE_SHARE if self.kind == "home" else 1.0


@dataclass(frozen=True, slots=True)
class TrafficWorkload:
    """The training: parameters, seconds of compute per step, and bits sent per parameter."""

    params: float
    step_seconds: float
    bits: float

    def __post_init__(self) -> None:
        _require(1 <= self.params < math.inf, "a model has at least 1 parameter")
        _require(0 < self.step_seconds < math.inf, "a step must last more than 0 seconds")
        _require(0 < self.bits <= 64, "between 0 and 64 bits are sent per parameter")


@dataclass(frozen=True, slots=True)
class Fragments:
    """The traffic pattern of Decoupled: P fragments, each sent once in a period of H steps, with an overlap of τ."""

    period_steps: float = 24
    count: int = 24
    overlap_steps: float = 2

    def __post_init__(self) -> None:
        _require(1 <= self.period_steps < math.inf, "the period is at least 1 step")
        _require(self.count >= 1, "there is at least 1 fragment")
        _require(0 <= self.overlap_steps < math.inf, "the overlap cannot be less than 0 steps")

    def as_the_paper_counts(self) -> Fragments:
        """Return the fragments with the period in which a whole model crosses the links in the paper's Table 13."""
        return Fragments(self.period_steps * PAPER_PERIODS_PER_MODEL, self.count, self.overlap_steps)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The steps between two crossings of the whole model, their messages, and the hidden part of each message."""

    steps: float
    messages: int
    hidden_steps: float  # of one message

    def free_seconds(self, step_seconds: float, hop_seconds: float) -> float:
        """Return the hidden seconds of sending in one crossing: at most all of them, as links carry bits once.

        Negative if latency alone makes the learners wait.
        """
        return min(self.messages * (self.hidden_steps * step_seconds - hop_seconds), self.steps * step_seconds)


def data_parallel() -> Rhythm:
    """Return the rhythm of gradients of the whole model at every step, hidden behind the backward pass."""
    return Rhythm(1, 1, BACKWARD_SHARE)


def decoupled(fragments: Fragments) -> Rhythm:
    """Return the rhythm of the whole model once in a period, fragment by fragment, each hidden behind the overlap."""
    return Rhythm(fragments.period_steps, fragments.count, max(0.0, fragments.overlap_steps - HIDDEN_LESS_STEPS))


def gbit_per_second(work: TrafficWorkload, rhythm: Rhythm, link: SiteLink, utilisation: float) -> float:
    """Return the rate of each site's line for which compute takes this share of the time.

    Raises UsageError if no rate is enough.
    """
    _require(0 < utilisation <= 1, "utilisation lies above 0 and is at most 1")
    waiting_seconds = rhythm.steps * work.step_seconds * (1 / utilisation - 1)
    seconds = waiting_seconds + rhythm.free_seconds(work.step_seconds, link.hop_seconds)
    _require(seconds > 0, f"latency alone keeps utilisation under {utilisation:g}; ask for less, or send less often")
    return work.params * work.bits * link.traffic_factor / seconds / link.usable_share / BITS_PER_GBIT


def utilisation(work: TrafficWorkload, rhythm: Rhythm, link: SiteLink, gbit: float) -> float:
    """Return the compute share of the time with lines of this many Gbit/s: the inverse of `gbit_per_second`."""
    _require(0 < gbit < math.inf, "a line carries more than 0 Gbit/s")
    sending_seconds = work.params * work.bits * link.traffic_factor / (gbit * BITS_PER_GBIT * link.usable_share)
    waiting_seconds = max(0.0, sending_seconds - rhythm.free_seconds(work.step_seconds, link.hop_seconds))
    computing_seconds = rhythm.steps * work.step_seconds
    return computing_seconds / (computing_seconds + waiting_seconds)
