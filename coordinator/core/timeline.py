"""Times within one attempt, as shares of its deadline, counted from the receipt of the roster.

If every member answers, nothing waits for these times. They only say when to go on without silent members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

QUORUM_SHARE = 0.2  # after waiting this long for a quorum, the grace window starts without one
GRACE_SHARE_MAX = 0.25  # the grace window ends before the peers that wait for the roster give up
STRANGERS_SHARE = 0.02  # how long a leader that has its quorum waits for joins of strangers
JOIN_SHARE = 0.5  # without a roster by then, the next attempt begins
REVISION_SHARE = 0.5  # all drafts of a roster together may delay the end by at most this
BUNDLE_SHARE = 0.2
INPUTS_SHARE = 0.4
CHECK_SHARE = 0.52
REDO_SHARE = 0.54  # by then a false, doubted or incomplete partition is reduced again, even if members are silent
REDO_INPUTS_SHARE = 0.64
RECHECK_SHARE = 0.72
PROPOSE_SHARES = (0.6, 0.8)  # without a redo, and after one
SECOND_PROPOSE_SHARE = 0.88
OPEN_SHARE = 0.08  # a reducer, or a contributor, that has not opened its inputs within this time is passed over
REFUTE_SHARE = 0.06  # how long the leader waits for a refutation that a check announces
RETRY_SHARE = 0.08  # the interval between repeats of messages that may be lost
QUIET_SHARE = 0.02  # no repeats for this long after a stage has begun: its messages are still on their way
PROBATION_SHARE = 0.08  # extra time at each stage for a peer on probation
GONE_SHARE = 0.08  # time for a leader that the transport lost to come back
LOCK_DEADLINES = 3  # after this many deadlines a voter may enter another attempt (design §6.2 step 9)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Absolute times of one attempt as one member sees them."""

    start: float
    deadline_seconds: float
    first_start: float = math.inf  # start of the first draft of the roster, if an earlier one came before this

    def redrafted(self, now: float, deadline_seconds: float) -> Timeline:
        """Return the next draft's times, restarted for slow links; REVISION_SHARE bounds the delay by all drafts."""
        first = min(self.start, self.first_start)
        return Timeline(min(now, first + REVISION_SHARE * deadline_seconds), deadline_seconds, first)

    def at(self, share: float) -> float:
        return self.start + share * self.deadline_seconds

    @property
    def end(self) -> float:
        return self.at(1.0)

    @property
    def lock_end(self) -> float:
        return self.at(LOCK_DEADLINES)
