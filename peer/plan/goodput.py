"""The share of a cluster's time that trains the model despite failing chips: goodput and uptime, simulated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dht.errors import UsageError
from dht.units import DAY_SECONDS
from peer.plan.chips import SECONDS_PER_YEAR, Cluster, Floats
from peer.plan.events import Runs, Stretches

STEPS_MAX = 200_000_000  # minutes of work; more is a mistake in the numbers
STRETCHES_MAX = 4096
WARMUP_ABSENCES = 5.0  # mean absences after which the number of missing slices has settled
WARMUP_STEPS = 20.0
STRETCH_WARMUPS = 5.0  # least length of a stretch, so that warming up stays a small part of the work


@dataclass(frozen=True, slots=True)
class Availability:
    """The outcome of a simulation (definitions of DiLoCo 2604.21428 §3.3).

    `goodput` is the share of all learners' time in useful steps, where a step with missing slices counts in proportion.
    `uptime` is the share of time in which at least one learner steps.
    """

    goodput: float
    uptime: float
    learners_per_merge: float
    seconds_between_failures: float
    simulated_days: float
    stretches: int


def simulate(cluster: Cluster, days: float, seed: int) -> Availability:
    """Simulate this many days, as independent stretches of at least five warm-ups, which are not counted.

    The same arguments give the same result. Raises UsageError if that is too much or nothing to simulate.
    """
    if not 0 < days < float("inf"):
        raise UsageError("simulate more than 0 days")
    timing = cluster.timing
    seconds = days * DAY_SECONDS
    if cluster.learners * seconds / timing.step_seconds > STEPS_MAX:
        raise UsageError(f"that would be more than {STEPS_MAX} steps of learners; simulate fewer days")
    longest = max(timing.down_seconds, timing.up_seconds)
    warmup = WARMUP_ABSENCES * (timing.absence.mean_seconds() + longest) + WARMUP_STEPS * timing.step_seconds
    count = int(np.clip(seconds // (STRETCH_WARMUPS * warmup), 1, STRETCHES_MAX))
    until = warmup + seconds / count
    stretches = Stretches(cluster, count, warmup, np.random.default_rng(seed))
    stretches.play(until)
    return Availability(
        # Sums of millions of terms may end a hair above the whole.
        goodput=min(1.0, float(stretches.useful_seconds.sum() / (cluster.learners * seconds))),
        uptime=min(1.0, float(covered_seconds(stretches.runs(), warmup, until).sum() / seconds)),
        learners_per_merge=stretches.reports_merged / stretches.merges if stretches.merges else 1.0,
        seconds_between_failures=cluster.mtbi_years * SECONDS_PER_YEAR / cluster.chips,
        simulated_days=days,
        stretches=count,
    )


def scavenged_time(extra_share: float, flops_share: float = 0.5) -> float:
    """Return the training time with this share of extra learners for a share of the work, at no loss, relative to none.

    It is the bound that Decoupled reaches in DiLoCo 2604.21428 Table 4.
    """
    if not (0 <= extra_share < float("inf") and 0 <= flops_share <= 1):
        raise UsageError("extra learners are a share above 0, and help for a share of the work between 0 and 1")
    return (1 - flops_share) + flops_share / (1 + extra_share)


def covered_seconds(runs: Runs, start: float, end: float) -> Floats:
    """Return the seconds with a learner stepping, from `start` to `end`, that each run adds; shape [runs]."""
    length = end - start
    # Laid one behind another, the stretches' runs need a single sweep.
    begin = np.clip(runs.start - start, 0.0, length) + runs.stretch * length
    stop = np.clip(runs.end - start, 0.0, length) + runs.stretch * length
    order = np.argsort(begin, kind="stable")
    begin, stop = begin[order], stop[order]
    reached = np.maximum.accumulate(np.concatenate([[0.0], stop]))[:-1]
    return np.asarray(np.clip(stop - np.maximum(begin, reached), 0.0, None))
