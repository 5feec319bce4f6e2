"""Which of our own work is in versions already, in inner steps, as far as the core can tell.

The shell keeps the exact counters with its snapshots; the core only needs to know whether there is anything to bring,
whether a version that reached us late holds work of which the snapshot is gone, and what of our work a chain lacks
that we change over to (docs/adr/0027).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.chain.certificate import Outcome
from coordinator.chain.chain import Chain
from coordinator.chain.lineage import LINEAGE_DEPTH_MAX
from coordinator.core.actions import Returned
from dht.identity import PeerId

ROUNDS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """Work of ours that a version holds which we have adopted."""

    version: int
    roster_id: bytes
    work: Returned


@dataclass(slots=True)
class OwnWork:
    """One peer's own work in one fragment, in this life."""

    me: PeerId
    counted_steps: int = 0  # our steps when we encoded what was last adopted
    given: dict[bytes, int] = field(default_factory=dict)  # our steps when we encoded for this roster
    entries: list[Entry] = field(default_factory=list)  # oldest first; without gaps, as far as they go back

    def give(self, roster_id: bytes, steps: int) -> None:
        """We bring our work to a round."""
        self.given[roster_id] = steps
        while len(self.given) > ROUNDS_KEPT:
            del self.given[next(iter(self.given))]

    def count(self, roster_id: bytes, outcome: Outcome) -> None:
        """A version with what we gave to this roster is ours, and so is the snapshot."""
        self.counted_steps = max(self.counted_steps, self.given.get(roster_id, 0))
        own = next((one for one in outcome.included() if one.peer == self.me), None)
        if roster_id != outcome.roster_id or own is None:
            self.entries.clear()  # it came through a cell: nothing says in public how much of it is ours
            return
        self.entries.append(Entry(outcome.version, roster_id, Returned(own.steps, own.tokens)))
        del self.entries[:-LINEAGE_DEPTH_MAX]

    def count_all(self, steps: int) -> None:
        """A version holds work of ours of which we do not know how much: what we did until now is not brought again."""
        self.counted_steps = max(self.counted_steps, steps)
        self.entries.clear()

    def take_back(self, chain: Chain) -> Returned | None:
        """Whatever we have counted that this chain does not hold is to be brought again; None if there is nothing."""
        lost = [one for one in self.entries if not _holds(chain, one)]
        self.entries = [one for one in self.entries if one not in lost]
        if not lost:
            return None
        returned = Returned(sum(one.work.steps for one in lost), sum(one.work.tokens for one in lost))
        self.counted_steps -= returned.steps
        self.given.clear()  # no version on this chain may pass for one whose work is counted
        return returned

    def brings(self, steps: int) -> bool:
        """Whether we have made at least one step that no version holds."""
        return steps > self.counted_steps

    def knows(self, outcome: Outcome) -> bool:
        """False if this version holds work of ours that we would bring again: from an earlier life, say."""
        if not any(outcome.included_in(self.me)):
            return True
        return outcome.roster_id in self.given and self.given[outcome.roster_id] <= self.counted_steps

    def change_over(self, outcomes: Sequence[Outcome]) -> bool:
        """We leave our branch for one of these versions: whether we know what of our work they hold.

        Where they hold some of it, nothing is taken back: a part may be in both branches.
        """
        if any(any(one.included_in(self.me)) for one in outcomes):
            self.entries.clear()
        return all(map(self.knows, outcomes))


def _holds(chain: Chain, entry: Entry) -> bool:
    """Whether the version of this chain is of the same roster; one that is not kept any more lies before all forks."""
    kept = chain.after(entry.version - 1, 1) if entry.version > chain.first_version else ()
    if kept:
        return kept[0].outcome.roster_id == entry.roster_id
    return entry.version <= chain.first_version
