"""One holder of states as seen by a downloading peer: its open requests, its speed and our patience. Sans-IO.

It is shared by all states that we request from the holder, because requests for different states wait in one queue
there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from peer.sync.download import Piece

PIECES_IN_FLIGHT = 8  # at most: 2 MiB
WINDOW_SECONDS = 2.0  # a holder is asked for one piece, plus as many as it delivers in this time
STALL_SECONDS = 5.0  # a silent holder without any valid answer is dropped after this
STALL_ANSWERS = 3.0  # times its usual answer time, at least `STALL_SECONDS`: then its pieces are requested from others
PATIENCE_SECONDS = 60.0  # a holder with a valid answer is dropped after this, since it may serve many peers
ANSWER_SECONDS = 1.0  # assumed until answers have come
TRUST = 0.3  # weight of a quicker answer against earlier ones; a slower one counts fully

Request = tuple[bytes, Piece]
"""The name of a state, and a piece of it."""


def patience_seconds(answer_seconds: float) -> float:
    """Return how long a holder with this answer time may be silent."""
    return min(max(STALL_SECONDS, STALL_ANSWERS * answer_seconds), PATIENCE_SECONDS)


@dataclass(slots=True)
class StateSource:
    """A peer that may hold states."""

    serves: set[bytes] = field(default_factory=set)  # names of the states that we may request
    owed: dict[Request, int] = field(
        default_factory=dict
    )  # oldest first: how many later requests were answered before it
    since: float = 0.0  # time of its last answer, or of the first request after a rest
    answer_seconds: float = ANSWER_SECONDS
    proven: bool = False  # whether it has given something valid
    turn_ends_at: float = math.inf  # infinite while it is not its turn

    @property
    def room(self) -> int:
        """Number of further pieces that may be requested from it."""
        window = 1 + int(WINDOW_SECONDS / max(self.answer_seconds, WINDOW_SECONDS / PIECES_IN_FLIGHT))
        return max(min(window, PIECES_IN_FLIGHT) - len(self.owed), 0)

    def ask(self, request: Request, now: float) -> None:
        """Record a request to it."""
        if not self.owed:
            self.since = now
        self.owed[request] = 0

    def answer(self, request: Request, now: float) -> list[Request]:
        """Record an answer; return the requests that it has skipped, because it answers in order."""
        if request[1] is not None:
            self._measure(now - self.since)
        for one in list(self.owed)[: list(self.owed).index(request)]:
            self.owed[one] += 1
        del self.owed[request]
        self.since = now
        return [one for one, passed in self.owed.items() if passed >= PIECES_IN_FLIGHT]

    def _measure(self, seconds: float) -> None:
        quicker = self.answer_seconds + TRUST * (seconds - self.answer_seconds)
        self.answer_seconds = max(seconds, quicker)

    def overdue_at(self) -> float:
        """Return when its pieces are requested from others, and nothing more from it until it answers."""
        return self.since + patience_seconds(self.answer_seconds) if self.owed else math.inf

    def leave_at(self) -> float:
        """Return when our patience ends; infinite without open requests."""
        return self.since + PATIENCE_SECONDS if self.owed and self.proven else self.overdue_at()

    def seconds_until(self, place: int, now: float) -> float:
        """Return the estimated time to the answer at this place of its queue: longer after silence."""
        silent = now - self.since if self.owed else 0.0
        return math.inf if now >= self.overdue_at() else max((place + 1) * self.answer_seconds - silent, silent)
