"""Whether a learner that should make steps stands still. Then nobody waits for it, and it is started again.

A process can hang and live on: its GPU's driver or a disk does not answer, or somebody has stopped it. Sans-IO; asked
about once a second.
"""

from __future__ import annotations

import math
from collections import deque

import structlog

from dht.errors import LocalError
from peer.rounds.counters import RunCounters

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0  # between two looks
LOOK_SECONDS_MAX = 5.0  # so much of the time between two looks counts: while a machine sleeps, its learner does too
PATIENCE_SECONDS = 30.0
PATIENCE_STEPS = 10.0  # as long as so many steps take
FIRST_STEPS_SECONDS = 600.0  # until we know how long one takes: the first ones compile, and fit the batch
HANGS_MAX = 3  # within `HANGS_SECONDS`; then starting it again does not help
HANGS_SECONDS = 3600.0
ADVICE_HANGS = "look at its GPU's driver, its disk and the system's log"


def patience_seconds(step_seconds: float | None) -> float:
    """How long a learner may go without a sign of life; `step_seconds` lie between two of its steps, as a rule."""
    return FIRST_STEPS_SECONDS if step_seconds is None else max(PATIENCE_SECONDS, PATIENCE_STEPS * step_seconds)


class HangDetector:
    """For how long a learner has stood still, and how often that was too long."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked_at = -math.inf
        self._sign: object = None
        self._hangs: deque[float] = deque(maxlen=HANGS_MAX)

    def look(self, sign: object, step_seconds: float | None, now: float) -> bool:
        """Whether it hangs. `sign` is another one after every step, and None while nobody wants it to make any."""
        passed, self._looked_at = min(now - self._looked_at, LOOK_SECONDS_MAX), now
        self.seconds = self.seconds + passed if sign is not None and sign == self._sign else 0.0
        self._sign = sign
        if self.seconds <= patience_seconds(step_seconds):
            return False
        self._sign = None  # from here on we wait anew
        self.count(now)
        return True

    def count(self, now: float) -> None:
        """It has to be started again."""
        self._hangs.append(now)

    def check_hope(self) -> None:
        """Raise LocalError if that was so often lately that starting it again does not help."""
        if len(self._hangs) == HANGS_MAX and self._hangs[-1] - self._hangs[0] <= HANGS_SECONDS:
            raise LocalError(
                f"the learner hung or was killed {HANGS_MAX} times within {HANGS_SECONDS / 60:.0f} minutes, each time "
                f"until it was started again; {ADVICE_HANGS}"
            )


def note_hang(seconds: float, counters: RunCounters) -> None:
    """Count it, and tell the owner until the learner makes steps again."""
    counters.events["learner_hangs"] += 1
    counters.hang_seconds = seconds
    log.error("learner_hangs", seconds=round(seconds, 1))


def note_loss(reason: str, counters: RunCounters) -> None:
    """Count and tell that another learner begins, because this one was killed."""
    counters.events["learner_lost"] += 1
    log.error("learner_lost", reason=reason)


def note_step(counters: RunCounters) -> None:
    """The learner makes steps."""
    if counters.hang_seconds is not None:
        counters.hang_seconds = None
        log.info("learner_goes_on")


def hang_advice(counters: RunCounters) -> str:
    """What the owner may do while a learner that hung is not back; empty otherwise."""
    if counters.hang_seconds is None:
        return ""
    return (
        f"the learner made no step for {counters.hang_seconds:.0f} s, so it is started again from what it saved last; "
        f"should that come again, {ADVICE_HANGS}"
    )
