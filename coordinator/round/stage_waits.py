"""Waits of a round's stages for silent members (docs/adr/0030, 0043)."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial

from coordinator.core.lateness import Lateness, Stage, round_number
from coordinator.core.timeline import PROBATION_SHARE, Timeline
from coordinator.group.group import Group
from dht.identity import PeerId


@dataclass(slots=True)
class StageWaits:
    """The wait of one stage: members have until its end; `hurried` or `late` ones only a moment after all others.

    Keys cost nothing. If each could delay a stage until its end by silence, new keys would slow every round down.
    """

    timeline: Timeline
    hurried: Set[PeerId]
    tell_late: Callable[[Set[PeerId]], None] | None = None  # called once, with the others that did not come
    spent: set[PeerId] = field(default_factory=set)  # hurried members get no second moment in this group
    late: Set[PeerId] = frozenset()  # members that did not come at an earlier stage of this group
    since: float | None = None  # when we began to wait
    alone_since: float | None = None  # when only hurried or late members were missing

    @property
    def moment_seconds(self) -> float:
        return PROBATION_SHARE * self.timeline.deadline_seconds

    @property
    def moment_ends(self) -> float:
        """When the moment of the hurried members ends."""
        return math.inf if self.alone_since is None else self.alone_since + self.moment_seconds

    def lasts(self, awaited: Set[PeerId], end: float, now: float) -> bool:
        """Return whether to go on waiting for `awaited` in a stage that ends at `end`."""
        awaited = awaited - (self.spent & self.hurried)
        if not awaited:
            return False
        self.since = now if self.since is None else self.since
        if now < end:
            if awaited - self.hurried - self.late:
                return True
            self.alone_since = now if self.alone_since is None else self.alone_since
            if now < self.moment_ends:
                return True
        self._tell(awaited - self.hurried, end)
        self.spent |= awaited & self.hurried
        return False

    def _tell(self, late: Set[PeerId], end: float) -> None:
        """Report late members, unless we have hardly waited because we came to this stage late ourselves."""
        if self.tell_late is not None and self.since is not None and self.since + self.moment_seconds <= end:
            self.tell_late(late)
        self.tell_late = None


@dataclass(slots=True)
class Waits:
    """The waits at all stages of one group, and a record of the members that were late there."""

    me: PeerId
    lateness: Lateness
    group: Group
    stages: dict[tuple[Stage, int], StageWaits] = field(default_factory=dict)
    spent: set[PeerId] = field(default_factory=set)
    results_sent: dict[PeerId, bytes] = field(default_factory=dict)  # the last result that each reducer sent us itself

    def hurried(self, stage: Stage) -> frozenset[PeerId]:
        """Return the members that have only a moment at this stage."""
        number = round_number(self.group.key.fragment, self.group.key.version)
        return self.lateness.hurried(frozenset(self.group.members) - {self.me}, stage, number)

    def at(self, stage: Stage, timeline: Timeline, partition: int = 0) -> StageWaits:
        """Return the wait of a stage, made when we first ask for it."""
        if (stage, partition) not in self.stages:
            hurried = self.group.probation | self.hurried(stage)
            late = frozenset[PeerId]() if stage[0] == "part" else self.spent  # a part left out would cost real work
            tell_late = partial(self._miss_in_turn, stage)
            self.stages[stage, partition] = StageWaits(timeline, hurried, tell_late, self.spent, late)
        return self.stages[stage, partition]

    def give_up(self, peers: Set[PeerId]) -> None:
        """Give these members only a moment at later stages, as we waited for them in vain; misses there count, too."""
        self.spent |= peers - {self.me}

    def note_arrival(self, stage: Stage, peer: PeerId) -> None:
        """Wait for this member again: what we awaited from it is here, in time or not."""
        self.spent.discard(peer)
        self.lateness.note_arrival(peer, stage)

    def note_result_sender(self, reducer: PeerId, result: bytes) -> None:
        """Note that a reducer sent us this result itself; we may not know yet whether it belongs to this group."""
        if reducer in self.group.reducers:
            self.results_sent[reducer] = result

    def note_result_arrival(self, stage: Stage, reducer: PeerId, result: bytes) -> None:
        """Wait for a reducer again, as we have its result, but only if it sent the result itself."""
        if self.results_sent.get(reducer) == result:
            self.note_arrival(stage, reducer)

    def _miss_in_turn(self, stage: Stage, peers: Set[PeerId]) -> None:
        self.miss(stage, peers)
        self.give_up(peers)

    def miss(self, stage: Stage, peers: Set[PeerId]) -> None:
        """Count a miss of these members: the stage is over and they did not come."""
        self.lateness.miss(peers - {self.me}, stage)

    def next_moment(self, now: float) -> float:
        """Return when the next stage ends for hurried members."""
        return min((one.moment_ends for one in self.stages.values() if one.moment_ends > now), default=math.inf)
