"""Tracks which uncounted work of the learner is too old, or too uncertain, to go into the next version."""

from __future__ import annotations


class StaleWork:
    """Per fragment: versions since one held our work, and whether the next adoption must drop that work."""

    def __init__(self, fragments: int, max_stale: int) -> None:
        self._missed = [0] * fragments
        self._max_stale = max_stale
        self._doubtful: set[int] = set()

    def doubt(self, fragments: set[int]) -> None:
        """Mark fragments after a restart or a long absence: versions that we missed may hold our work already."""
        self._doubtful |= fragments

    def included(self, fragment: int) -> None:
        """Record that a version holds our work."""
        self._missed[fragment] = 0

    def is_dropped(self, fragment: int) -> bool:
        """Record a version without our work; return whether that work is dropped now.

        It is dropped after `max_stale` such versions (design §6.2 step 10).
        """
        self._missed[fragment] += 1
        if self._missed[fragment] <= self._max_stale and fragment not in self._doubtful:
            return False
        self._doubtful.discard(fragment)
        self._missed[fragment] = 0
        return True
