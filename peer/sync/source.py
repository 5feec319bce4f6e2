"""One holder of states, as a fetcher sees it: what it owes us, how fast it answers, how long we wait. Sans-IO.

The same for all states that we ask it for: each question waits there for those before it, of whatever state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from peer.sync.download import Piece

PIECES_IN_FLIGHT = 8  # at most: 2 MiB
WINDOW_SECONDS = 2.0  # a holder is asked for one piece, and for so many more as it gives in this time
STALL_SECONDS = 5.0  # a holder that is silent for so long, and never gave anything that proved itself, is left
STALL_ANSWERS = 3.0  # of the time that its answers take: what it owes after this, or `STALL_SECONDS`, others are asked
PATIENCE_SECONDS = 60.0  # a holder that has given something is left after so long: it may have many askers
ANSWER_SECONDS = 1.0  # what an answer is thought to take until some have come
TRUST = 0.3  # how much a quicker answer counts against those before it; a slower one counts at once

Request = tuple[bytes, Piece]
"""The name of a state, and a piece of it."""


def patience_seconds(answer_seconds: float) -> float:
    """How long somebody whose answers take so long may be silent."""
    return min(max(STALL_SECONDS, STALL_ANSWERS * answer_seconds), PATIENCE_SECONDS)


@dataclass(slots=True)
class StateSource:
    """Somebody who may hold states."""

    serves: set[bytes] = field(default_factory=set)  # the names of those that we may ask it for
    owed: dict[Request, int] = field(
        default_factory=dict
    )  # oldest first: how many later questions were answered before
    since: float = 0.0  # when it last answered, or was first asked after a rest
    answer_seconds: float = ANSWER_SECONDS
    proven: bool = False  # it has given something of use
    turn_ends_at: float = math.inf  # while it is not its turn

    @property
    def room(self) -> int:
        """For how many pieces more it may be asked."""
        window = 1 + int(WINDOW_SECONDS / max(self.answer_seconds, WINDOW_SECONDS / PIECES_IN_FLIGHT))
        return max(min(window, PIECES_IN_FLIGHT) - len(self.owed), 0)

    def ask(self, request: Request, now: float) -> None:
        """It is asked for this."""
        if not self.owed:
            self.since = now
        self.owed[request] = 0

    def answer(self, request: Request, now: float) -> list[Request]:
        """It has answered what it owed; returns what it will not answer any more, for it answers in order."""
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
        """From when on it is asked for nothing more until it answers, and what it owes is asked of others."""
        return self.since + patience_seconds(self.answer_seconds) if self.owed else math.inf

    def leave_at(self) -> float:
        """When we lose patience; infinite while nothing is asked."""
        return self.since + PATIENCE_SECONDS if self.owed and self.proven else self.overdue_at()

    def seconds_until(self, place: int, now: float) -> float:
        """How long the answer to the question at this place takes, as far as we can tell: longer after silence."""
        silent = now - self.since if self.owed else 0.0
        return math.inf if now >= self.overdue_at() else max((place + 1) * self.answer_seconds - silent, silent)
