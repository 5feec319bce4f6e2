"""When a learner may begin its next inner step. Pure."""

from __future__ import annotations


def next_step_at(due: float, began: float, ended: float, step_seconds: float, compute_share: float) -> float:
    """The moment, in seconds of the clock of `due`, `began` and `ended`, at which the next step is due.

    Steps are due `step_seconds` apart. One that begins late, because the processor was busy, is followed by the next
    one as if it had not, or a pace of half a second would be two percent slower than it says; but who was away for a
    whole step makes up for nothing. At most `compute_share` of the time goes to steps.
    """
    counted_from = due if began - due < step_seconds else began
    return max(counted_from + step_seconds, began + (ended - began) / compute_share)
