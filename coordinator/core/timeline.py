"""When things are due inside one attempt: shares of its deadline, counted from the roster's receipt.

With everybody there nothing waits for these; they only say when to go on without silent members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

QUORUM_SHARE = 0.2  # of a round's deadline: after this wait for a quorum the grace window starts without one
GRACE_SHARE_MAX = 0.25  # the grace window ends before those who wait for the roster give up
STRANGERS_SHARE = 0.02  # of a deadline: how long a leader that has its quorum waits for joins of strangers
JOIN_SHARE = 0.5  # without a roster by then, the next attempt begins
REVISION_SHARE = 0.5  # by this all drafts of a roster together may put the end off
BUNDLE_SHARE = 0.2
INPUTS_SHARE = 0.4
CHECK_SHARE = 0.52
REDO_SHARE = 0.54  # what is false, doubted or lacks an input is reduced again by then, even if some are silent
REDO_INPUTS_SHARE = 0.64
RECHECK_SHARE = 0.72
PROPOSE_SHARES = (0.6, 0.8)  # without and after a redo
SECOND_PROPOSE_SHARE = 0.88
OPEN_SHARE = 0.08  # a reducer that has not opened its inputs by then is passed over; so long for contributors, too
REFUTE_SHARE = 0.06  # how long the leader waits for a refutation that a check announces
RETRY_SHARE = 0.08  # what may have got lost is repeated this often
QUIET_SHARE = 0.02  # but not for so long after a stage has begun: what belongs to it is on its way
PROBATION_SHARE = 0.08  # how much longer than the others a peer on probation may take at each stage
GONE_SHARE = 0.08  # how long a leader that the transport lost may take to come back
LOCK_DEADLINES = 3  # after this many deadlines a voter may enter another attempt (design §6.2 step 9)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Absolute times of one attempt as one member sees them."""

    start: float
    deadline_seconds: float
    first_start: float = math.inf  # where an earlier draft of the roster has come before this one

    def redrafted(self, now: float, deadline_seconds: float) -> Timeline:
        """The next draft's times: slow lines get what they take, but a leader that drafts on holds nobody for long."""
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
