"""Who let us wait in vain at a stage of its last rounds: it is waited for only a moment in the next (docs/adr/0043)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from dht.identity import PeerId

MISSES_MAX = 3  # a peer that never comes costs its stage's whole time in one round of 4**3
ENTRIES_MAX = 8192  # that are remembered of all peers together

Stage = tuple[str, int]
"""What was awaited, and in which turn: 1 after a redo."""

LEADING: Stage = ("lead", 0)
RESULT: Stage = ("result", 0)
OPENING: Stage = ("opening", 0)


def round_number(fragment: int, version: int) -> int:
    """By this all count alike whose turn it is to be waited for; fragments have their turns one after the other."""
    return version + fragment


@dataclass(slots=True)
class Lateness:
    """What one peer has seen itself: how often in a row somebody was waited for to the end of a stage, and not there.

    The next whole wait is in a round whose number is divisible by 4, 16, 64. So all who wait for one peer do so in the
    same rounds, and a peer slower than the others, but in time, has its chance in every fourth round at first.
    """

    misses: dict[tuple[PeerId, Stage], int] = field(default_factory=dict)

    def miss(self, peers: Iterable[PeerId], stage: Stage) -> None:
        """These were waited for to the end."""
        for peer in sorted(peers):
            known = self.misses.pop((peer, stage), 0)
            while len(self.misses) >= ENTRIES_MAX:
                del self.misses[next(iter(self.misses))]
            self.misses[peer, stage] = min(known + 1, MISSES_MAX)

    def come(self, peer: PeerId, stage: Stage) -> None:
        """What was awaited of it is here: it is waited for again."""
        self.misses.pop((peer, stage), None)

    def hurried(self, peers: Set[PeerId], stage: Stage, number: int) -> frozenset[PeerId]:
        """Which of these have only a moment at this stage of round `number`; who was tardy in turn 0 is in turn 1."""
        what, turn = stage
        return frozenset(
            peer
            for peer in peers
            if any(number % 4 ** self.misses.get((peer, (what, one)), 0) for one in range(turn + 1))
        )
