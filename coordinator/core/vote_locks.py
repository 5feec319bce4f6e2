"""Vote locks and used-up attempts at the bases of one fragment (design §6.2 step 9).

A vote that may still make a version binds us. A base that we have left may become ours again: its branch wins after
all, or nobody serves the version after it. Our votes there still count then, so we remember them per base.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.chain.lineage import LINEAGE_DEPTH_MAX
from coordinator.core.actions import VoteRecord
from coordinator.core.context import Core
from coordinator.core.timeline import LOCK_DEADLINES

BASES_MAX = 4 * LINEAGE_DEPTH_MAX  # bases with votes of ours; we never return to deeper ones, even of several branches


@dataclass(frozen=True, slots=True)
class VoteLock:
    """A lock at one base: attempts below `first_attempt` are used up, and we enter no group until `until`."""

    first_attempt: int = 0
    until: float = 0.0


FREE = VoteLock()


@dataclass(slots=True)
class VoteLocks:
    """Our vote locks, by base (the digest of a version)."""

    core: Core
    known: dict[bytes, VoteLock] = field(default_factory=dict)

    def at(self, base: bytes) -> VoteLock:
        return self.known.get(base, FREE)

    def restore(self, record: VoteRecord, now: float) -> None:
        """Honour a vote that we gave before a restart, whenever we get to its base."""
        self.extend(record.parent, 0, now + LOCK_DEADLINES * self.core.deadline_seconds(record.attempt))

    def extend(self, base: bytes, first_attempt: int, until: float) -> None:
        """Extend the lock at a base; a lock ends by time only."""
        if base not in self.known and first_attempt == 0 and until == 0.0:
            return  # no vote of ours there: catching up passes many such bases, and they must not push out others
        old = self.known.pop(base, FREE)
        self.known[base] = VoteLock(max(old.first_attempt, first_attempt), max(old.until, until))
        while len(self.known) > BASES_MAX:
            del self.known[next(iter(self.known))]
