"""Peers that missed a stage in their last rounds, for which we wait only briefly in the next (docs/adr/0043)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from dht.identity import PeerId

MISSES_MAX = 3  # a peer that is always late costs the whole time of its stage in one round of 4**3
ENTRIES_MAX = 8192  # remembered for all peers together

Stage = tuple[str, int]
"""The awaited stage and its turn: 1 after a redo, else 0."""

LEADING: Stage = ("lead", 0)
RESULT: Stage = ("result", 0)
OPENING: Stage = ("opening", 0)


def round_number(fragment: int, version: int) -> int:
    """Return the number by which all peers agree on the rounds with whole waits; it shifts by one per fragment."""
    return version + fragment


@dataclass(slots=True)
class Lateness:
    """Counts of stages in a row that each peer missed although we waited to the end, seen by one peer itself.

    After 1, 2, 3 misses the next whole wait is in a round whose number is divisible by 4, 16, 64. So all peers wait
    for one peer in the same rounds. A slow peer that would be in time gets a chance in every fourth round at first.
    """

    misses: dict[tuple[PeerId, Stage], int] = field(default_factory=dict)

    def miss(self, peers: Iterable[PeerId], stage: Stage) -> None:
        """Count a miss of these peers: we waited for them to the end of the stage."""
        for peer in sorted(peers):
            known = self.misses.pop((peer, stage), 0)
            while len(self.misses) >= ENTRIES_MAX:
                del self.misses[next(iter(self.misses))]
            self.misses[peer, stage] = min(known + 1, MISSES_MAX)

    def note_arrival(self, peer: PeerId, stage: Stage) -> None:
        """Forget the misses of this peer at this stage, as its message is here."""
        self.misses.pop((peer, stage), None)

    def hurried(self, peers: Set[PeerId], stage: Stage, number: int) -> frozenset[PeerId]:
        """Return the peers that get only a brief wait at this stage of round `number`.

        Misses of turn 0 count in turn 1, too.
        """
        what, turn = stage
        return frozenset(
            peer
            for peer in peers
            if any(number % 4 ** self.misses.get((peer, (what, one)), 0) for one in range(turn + 1))
        )
