"""An account of our own work that versions hold already, in inner steps, as far as the core can tell.

The shell keeps the exact counters with its snapshots. The core only needs to know three things: whether there is
anything to contribute; whether a version that reached us late holds work whose snapshot is gone; and how much of our
work is missing in a chain to which we change over (docs/adr/0027).
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
    """Work of ours in a version that we have adopted."""

    version: int
    roster_id: bytes
    work: Returned


@dataclass(slots=True)
class OwnWork:
    """One peer's own work in one fragment since its process started."""

    me: PeerId
    counted_steps: int = 0  # our step count when we encoded the contribution that was adopted last
    contributed: dict[bytes, int] = field(default_factory=dict)  # by roster: our step count when we encoded for it
    entries: list[Entry] = field(default_factory=list)  # oldest first, without gaps

    def note_contribution(self, roster_id: bytes, steps: int) -> None:
        """Note that we contribute to the round of this roster, encoded at `steps` inner steps."""
        self.contributed[roster_id] = steps
        while len(self.contributed) > ROUNDS_KEPT:
            del self.contributed[next(iter(self.contributed))]

    def count(self, roster_id: bytes, outcome: Outcome) -> None:
        """Count the work that we gave to this roster as held by an adopted version."""
        self.counted_steps = max(self.counted_steps, self.contributed.get(roster_id, 0))
        own = next((one for one in outcome.included() if one.peer == self.me), None)
        if roster_id != outcome.roster_id or own is None:
            self.entries.clear()  # it came through a cell: no public figure says how much of it is ours
            return
        self.entries.append(Entry(outcome.version, roster_id, Returned(own.steps, own.tokens)))
        del self.entries[:-LINEAGE_DEPTH_MAX]

    def count_all(self, steps: int) -> None:
        """Count all our steps until now: a version holds an unknown part of them, so none may be contributed again."""
        self.counted_steps = max(self.counted_steps, steps)
        self.entries.clear()

    def begin_anew(self, steps: int) -> None:
        """Note that our learner goes on from a save of `steps` inner steps: the later ones are lost as in a crash."""
        self.counted_steps = min(self.counted_steps, steps)
        self.contributed.clear()
        self.entries.clear()

    def take_back(self, chain: Chain) -> Returned | None:
        """Uncount the work that this chain lacks and return it, to be contributed again; None if nothing is lacking."""
        lost = [one for one in self.entries if not _holds(chain, one)]
        self.entries = [one for one in self.entries if one not in lost]
        if not lost:
            return None
        returned = Returned(sum(one.work.steps for one in lost), sum(one.work.tokens for one in lost))
        self.counted_steps -= returned.steps
        self.contributed.clear()  # else `knows` could take a version of this chain for one whose work is counted
        return returned

    def has_new_steps(self, steps: int) -> bool:
        """Whether we have made at least one step that no version holds."""
        return steps > self.counted_steps

    def knows(self, outcome: Outcome) -> bool:
        """False if this version holds work of ours that we would contribute again: from before a restart, say."""
        if not any(outcome.included_in(self.me)):
            return True
        return outcome.roster_id in self.contributed and self.contributed[outcome.roster_id] <= self.counted_steps

    def change_over(self, outcomes: Sequence[Outcome]) -> bool:
        """Leave our branch for one of these versions; return whether we know which of our work they hold.

        If they hold any of it, we take nothing back: a part may be in both branches.
        """
        if any(any(one.included_in(self.me)) for one in outcomes):
            self.entries.clear()
        return all(map(self.knows, outcomes))


def _holds(chain: Chain, entry: Entry) -> bool:
    """Whether this chain's version has the same roster; a version no longer kept lies before all forks and counts."""
    kept = chain.after(entry.version - 1, 1) if entry.version > chain.first_version else ()
    if kept:
        return kept[0].outcome.roster_id == entry.roster_id
    return entry.version <= chain.first_version
