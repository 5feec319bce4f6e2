"""How long the stages of a round wait for members that are silent (docs/adr/0030, 0043)."""

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
    """One stage's waits: all have until its end, who is `hurried` or `late` only a moment more than the others take.

    Keys cost nothing; if each could hold a stage up until its end by silence, new ones would slow every round down.
    """

    timeline: Timeline
    hurried: Set[PeerId]
    tell_late: Callable[[Set[PeerId]], None] | None = None  # once, of the others who were awaited in vain
    spent: set[PeerId] = field(default_factory=set)  # had their time in this group: no second moment for the hurried
    late: Set[PeerId] = frozenset()  # were awaited in vain at an earlier stage of this group
    since: float | None = None  # when we began to wait
    alone_since: float | None = None  # when nobody else was waited for any more

    @property
    def moment_seconds(self) -> float:
        return PROBATION_SHARE * self.timeline.deadline_seconds

    @property
    def moment_ends(self) -> float:
        """When those who are hurried have had their moment."""
        return math.inf if self.alone_since is None else self.alone_since + self.moment_seconds

    def lasts(self, awaited: Set[PeerId], end: float, now: float) -> bool:
        """Whether to wait on for `awaited`, in a stage that ends at `end`."""
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
        """Unless we have hardly waited, as a peer that came to this stage late itself."""
        if self.tell_late is not None and self.since is not None and self.since + self.moment_seconds <= end:
            self.tell_late(late)
        self.tell_late = None


@dataclass(slots=True)
class Waits:
    """All stages of one group at which we wait for members, and what we learn there about who is tardy."""

    me: PeerId
    tardiness: Lateness
    group: Group
    stages: dict[tuple[Stage, int], StageWaits] = field(default_factory=dict)
    spent: set[PeerId] = field(default_factory=set)
    given_by: dict[PeerId, bytes] = field(default_factory=dict)  # the last result that each reducer gave us itself

    def hurried(self, stage: Stage) -> frozenset[PeerId]:
        """Members that have only a moment at this stage."""
        number = round_number(self.group.key.fragment, self.group.key.version)
        return self.tardiness.hurried(frozenset(self.group.members) - {self.me}, stage, number)

    def at(self, stage: Stage, timeline: Timeline, partition: int = 0) -> StageWaits:
        """Our patience at a stage, from when we first ask for it."""
        if (stage, partition) not in self.stages:
            hurried = self.group.probation | self.hurried(stage)
            late = frozenset[PeerId]() if stage[0] == "part" else self.spent  # whose part does not count loses work
            tell_late = partial(self._miss_in_turn, stage)
            self.stages[stage, partition] = StageWaits(timeline, hurried, tell_late, self.spent, late)
        return self.stages[stage, partition]

    def give_up(self, peers: Set[PeerId]) -> None:
        """These let us wait in vain: they have a moment at later stages, and we note it where they miss that, too."""
        self.spent |= peers - {self.me}

    def come(self, stage: Stage, peer: PeerId) -> None:
        """What we awaited of a member is here, in time or not: it is waited for again."""
        self.spent.discard(peer)
        self.tardiness.come(peer, stage)

    def see_giver(self, reducer: PeerId, result: bytes) -> None:
        """It gives us this result itself; whether that is one of this group, we may not know yet."""
        if reducer in self.group.reducers:
            self.given_by[reducer] = result

    def come_with(self, stage: Stage, reducer: PeerId, result: bytes) -> None:
        """We have its result; if others show it to us, that does not say that it comes."""
        if self.given_by.get(reducer) == result:
            self.come(stage, reducer)

    def _miss_in_turn(self, stage: Stage, peers: Set[PeerId]) -> None:
        self.miss(stage, peers)
        self.give_up(peers)

    def miss(self, stage: Stage, peers: Set[PeerId]) -> None:
        """The stage is at its end, and these did not come."""
        self.tardiness.miss(peers - {self.me}, stage)

    def next_moment(self, now: float) -> float:
        """When the next stage ends for those who are hurried."""
        return min((one.moment_ends for one in self.stages.values() if one.moment_ends > now), default=math.inf)
