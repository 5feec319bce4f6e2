"""How long one stage of a round waits for members that are silent (docs/adr/0030)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from coordinator.timeline import PROBATION_SHARE, Timeline
from dht.identity import PeerId


@dataclass(slots=True)
class Patience:
    """Of one stage: everybody has until its end, who is on probation only a moment more than the others take.

    Keys cost nothing; if each could hold a stage up until its end by silence, new ones would slow every round down.
    """

    timeline: Timeline
    probation: Set[PeerId]
    alone_since: float | None = None  # when nobody else was waited for any more

    def lasts(self, awaited: Set[PeerId], end: float, now: float) -> bool:
        """Whether to wait on for `awaited`, in a stage that ends at `end`."""
        if not awaited or now >= end:
            return False
        if awaited - self.probation:
            return True
        self.alone_since = now if self.alone_since is None else self.alone_since
        return now < self.alone_since + PROBATION_SHARE * self.timeline.deadline_seconds
