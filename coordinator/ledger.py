"""Which of our own work is in versions already, in inner steps, as far as the core can tell.

The shell keeps the exact counters with its snapshots; the core only needs to know whether there is anything to bring,
and whether a version that reached us late holds work of which the snapshot is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.certificate import Outcome
from dht.identity import PeerId

ROUNDS_KEPT = 64


@dataclass(slots=True)
class Ledger:
    """Of one fragment at one peer, in this life."""

    counted_steps: int = 0  # our steps when we encoded what was last adopted
    given: dict[bytes, int] = field(default_factory=dict)  # our steps when we encoded for this roster

    def give(self, roster_id: bytes, steps: int) -> None:
        """We bring our work to a round."""
        self.given[roster_id] = steps
        while len(self.given) > ROUNDS_KEPT:
            del self.given[next(iter(self.given))]

    def count(self, roster_id: bytes) -> None:
        """A version with what we gave to this roster is ours, and so is the snapshot."""
        self.counted_steps = max(self.counted_steps, self.given.get(roster_id, 0))

    def count_all(self, steps: int) -> None:
        """A version holds work of ours of which we do not know how much: what we did until now is not brought again."""
        self.counted_steps = max(self.counted_steps, steps)

    def brings(self, steps: int) -> bool:
        """Whether we have made at least one step that no version holds."""
        return steps > self.counted_steps

    def knows(self, outcome: Outcome, me: PeerId) -> bool:
        """False if this version holds work of ours that we would bring again: from an earlier life, say."""
        if not any(outcome.included_in(me)):
            return True
        return outcome.roster_id in self.given and self.given[outcome.roster_id] <= self.counted_steps
