"""What binds us at the bases of one fragment (design §6.2 step 9): votes that may yet make a version, used-up attempts.

A base that we have left may become ours again: its branch wins after all, or nobody serves the version after it. What
we said there still counts then, so it is remembered per base.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.chain.lineage import LINEAGE_DEPTH_MAX
from coordinator.core.actions import VoteRecord
from coordinator.core.context import Core
from coordinator.core.timeline import LOCK_DEADLINES

BASES_MAX = 4 * LINEAGE_DEPTH_MAX  # at which we spoke; a base that lies deeper on several branches is not ours again


@dataclass(frozen=True, slots=True)
class VoteLock:
    """Attempts below `first_attempt` are used up; until `until` no group may be entered."""

    first_attempt: int = 0
    until: float = 0.0


FREE = VoteLock()


@dataclass(slots=True)
class VoteLocks:
    """Per base (the digest of a version) what binds us there."""

    core: Core
    known: dict[bytes, VoteLock] = field(default_factory=dict)

    def at(self, base: bytes) -> VoteLock:
        return self.known.get(base, FREE)

    def bind(self, record: VoteRecord, now: float) -> None:
        """Honour a vote that an earlier life of ours gave, whenever we get to its base."""
        self.tie(record.parent, 0, now + LOCK_DEADLINES * self.core.deadline_seconds(record.attempt))

    def tie(self, base: bytes, first_attempt: int, until: float) -> None:
        """Add to what binds us at a base; a lock ends by time only."""
        if base not in self.known and first_attempt == 0 and until == 0.0:
            return  # we said nothing there: catching up passes many such bases, and none may push out another
        old = self.known.pop(base, FREE)
        self.known[base] = VoteLock(max(old.first_attempt, first_attempt), max(old.until, until))
        while len(self.known) > BASES_MAX:
            del self.known[next(iter(self.known))]
