"""How far the reading of a corpus has come, and what was left out of it or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

Tell = Callable[[str, float | None], None]
"""Hears what is being done, and which share of it is done where that is known: who tells is alive."""


def tell_nobody(_what: str, _share: float | None) -> None:
    """Nobody waits."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How a corpus is loaded here: whom to tell about it, and with how many threads."""

    tell: Tell = tell_nobody
    threads: int = 1


@dataclass(slots=True)
class CorpusTally:
    """Bytes read, and counts in words: `left_out["empty lines"]`."""

    read_bytes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """One line for people; empty if everything was taken as it is."""
        parts = [
            f"{verb} " + ", ".join(f"{times:,} {what}" for what, times in sorted(counts.items()) if times)
            for verb, counts in (("left out", self.left_out), ("replaced", self.replaced))
            if counts.total()
        ]
        return "; ".join([*parts, *self.notes])
