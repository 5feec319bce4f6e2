"""Progress of reading a corpus, and counts of what was left out or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

Tell = Callable[[str, float | None], None]
"""Called with the current activity and, if known, the share that is done; each call is a sign of life."""


def tell_nobody(_what: str, _share: float | None) -> None:
    """Ignore progress, because nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The way a corpus is loaded here: the callback for progress, and the number of threads."""

    tell: Tell = tell_nobody
    threads: int = 1


@dataclass(slots=True)
class CorpusTally:
    """Bytes read, and counts by a description: `left_out["empty lines"]`."""

    read_bytes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return one line for people; empty if everything was used as it is."""
        parts = [
            f"{verb} " + ", ".join(f"{times:,} {what}" for what, times in sorted(counts.items()) if times)
            for verb, counts in (("left out", self.left_out), ("replaced", self.replaced))
            if counts.total()
        ]
        return "; ".join([*parts, *self.notes])
