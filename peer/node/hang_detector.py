"""Detects a learner that should make steps and hangs. Rounds then no longer wait for it, and it is restarted.

A process can hang and stay alive: its GPU's driver or a disk does not answer, or a person has stopped it. Sans-IO;
called about once a second.
"""

from __future__ import annotations

import math
from collections import deque

import structlog

from dht.errors import LocalError
from peer.rounds.counters import RunCounters

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0  # between two looks
LOOK_SECONDS_MAX = 5.0  # at most this much time between two looks counts: while a machine sleeps, its learner does too
PATIENCE_SECONDS = 30.0
PATIENCE_STEPS = 10.0  # the duration of this many steps
FIRST_STEPS_SECONDS = 600.0  # until a step's duration is known: the first ones compile, and fit the batch
HANGS_MAX = 3  # within `HANGS_SECONDS`; after that, a restart does not help
HANGS_SECONDS = 3600.0
ADVICE_HANGS = "look at its GPU's driver, its disk and the system's log"


def patience_seconds(step_seconds: float | None) -> float:
    """Return how long a learner may show no sign of life, if its steps take `step_seconds` as a rule."""
    return FIRST_STEPS_SECONDS if step_seconds is None else max(PATIENCE_SECONDS, PATIENCE_STEPS * step_seconds)


class HangDetector:
    """Measures how long a learner has stood still, and counts how often that was too long."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked_at = -math.inf
        self._sign: object = None
        self._hangs: deque[float] = deque(maxlen=HANGS_MAX)

    def look(self, sign: object, step_seconds: float | None, now: float) -> bool:
        """Whether it hangs. `sign` differs after every step, and is None while no step is wanted."""
        passed, self._looked_at = min(now - self._looked_at, LOOK_SECONDS_MAX), now
        self.seconds = self.seconds + passed if sign is not None and sign == self._sign else 0.0
        self._sign = sign
        if self.seconds <= patience_seconds(step_seconds):
            return False
        self._sign = None  # start to wait afresh
        self.count(now)
        return True

    def count(self, now: float) -> None:
        """Record that the learner has to be restarted."""
        self._hangs.append(now)

    def check_hope(self) -> None:
        """Raise LocalError if there were so many hangs lately that a restart does not help."""
        if len(self._hangs) == HANGS_MAX and self._hangs[-1] - self._hangs[0] <= HANGS_SECONDS:
            raise LocalError(
                f"the learner hung or was killed {HANGS_MAX} times within {HANGS_SECONDS / 60:.0f} minutes, each time "
                f"until it was started again; {ADVICE_HANGS}"
            )


def note_hang(seconds: float, counters: RunCounters) -> None:
    """Count a hang, and tell the owner until the learner makes steps again."""
    counters.events["learner_hangs"] += 1
    counters.hang_seconds = seconds
    log.error("learner_hangs", seconds=round(seconds, 1))


def note_loss(reason: str, counters: RunCounters) -> None:
    """Count and log that the learner was killed and another one begins."""
    counters.events["learner_lost"] += 1
    log.error("learner_lost", reason=reason)


def note_step(counters: RunCounters) -> None:
    """Record that the learner makes steps."""
    if counters.hang_seconds is not None:
        counters.hang_seconds = None
        log.info("learner_goes_on")


def hang_advice(counters: RunCounters) -> str:
    """Return advice for the owner while a learner that hung is not back; empty otherwise."""
    if counters.hang_seconds is None:
        return ""
    return (
        f"the learner made no step for {counters.hang_seconds:.0f} s, so it is started again from what it saved last; "
        f"should that come again, {ADVICE_HANGS}"
    )
