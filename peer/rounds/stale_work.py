"""Which of the learner's uncounted work is too old, or of too uncertain a past, to be carried into the next version."""

from __future__ import annotations


class StaleWork:
    """Per fragment: versions since our work was last in one, and whether the next adoption has to drop it."""

    def __init__(self, fragments: int, max_stale: int) -> None:
        self._missed = [0] * fragments
        self._max_stale = max_stale
        self._doubtful: set[int] = set()

    def doubt(self, fragments: set[int]) -> None:
        """After a restart or a long absence: what we hold beyond the anchor may be in versions that we missed."""
        self._doubtful |= fragments

    def included(self, fragment: int) -> None:
        """A version has our work in it."""
        self._missed[fragment] = 0

    def is_dropped(self, fragment: int) -> bool:
        """A version came without us: whether our work is dropped now (design §6.2 step 10: after `max_stale`)."""
        self._missed[fragment] += 1
        if self._missed[fragment] <= self._max_stale and fragment not in self._doubtful:
            return False
        self._doubtful.discard(fragment)
        self._missed[fragment] = 0
        return True
