"""Whether this machine's inner steps are too long for the run's rounds, and what can be done (docs/adr/0038).

A peer's contribution is copied between two steps, and the leader waits for commitments for a fifth of the round's
deadline. A peer in a longer step commits too late.
"""

from __future__ import annotations

import structlog

from coordinator.core.timeline import BUNDLE_SHARE
from coordinator.run.manifest import PaceSpec
from peer.rounds.counters import RunCounters

log = structlog.get_logger(__name__)

STEADY_SHARE = 0.8  # of the longest step: reports of slow steps end once they are shorter than this
TOO_LATE = "Much of this machine's work may come too late to count"
ADVICE_SLOW_STEPS = (
    "give the learner more cores or a GPU, end what else runs here, or ask the run's host for a run with a larger "
    "pace.round_seconds or a smaller data.sequences_per_step"
)


def step_seconds_max(pace: PaceSpec) -> float:
    """Return the longest step with which a peer is usually in time."""
    return BUNDLE_SHARE * pace.round_seconds


def step_words(step_seconds: float, pace: PaceSpec) -> str:
    """Describe a step beside what rounds allow for it."""
    longest = step_seconds_max(pace)
    only = "only " if step_seconds > longest else ""
    return f"a step takes {_seconds(step_seconds)} here, and other peers wait {only}{_seconds(longest)}"


def watch_steps(step_seconds: float | None, pace: PaceSpec, counters: RunCounters) -> None:
    """Record how long a step takes if that is too long; log when this begins or ends."""
    if step_seconds is None:
        return
    was_slow, longest = counters.slow_step_seconds is not None, step_seconds_max(pace)
    slow = step_seconds > (STEADY_SHARE * longest if was_slow else longest)
    counters.slow_step_seconds = step_seconds if slow else None
    if slow == was_slow:
        return
    counters.events["steps_too_long" if slow else "steps_in_time"] += 1
    if slow:
        log.warning("steps_too_long", advice=slow_advice(pace, counters))
    else:
        log.info("steps_in_time", reason=step_words(step_seconds, pace))


def slow_advice(pace: PaceSpec, counters: RunCounters) -> str:
    """Return advice for the owner while steps are too long, with the reason; empty otherwise."""
    seconds = counters.slow_step_seconds
    return "" if seconds is None else f"{step_words(seconds, pace)}. {TOO_LATE}; {ADVICE_SLOW_STEPS}"


def _seconds(seconds: float) -> str:
    """Format seconds with enough digits to compare a step with its limit."""
    return f"{float(f'{seconds:.3g}'):g} s"
