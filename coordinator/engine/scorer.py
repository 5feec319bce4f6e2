"""Looks into what a contribution does to the loss, after the version that has it (`coordinator.trust.scores`). Sans-IO.

A member that is drawn gets the whole contribution from its maker, part by part as it was committed, and has its
shell appraise it. One at a time; who gives nothing is appraised by nobody, and nothing follows from that.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from coordinator.core.actions import Action, Appraise, Send, Tell
from coordinator.core.context import Core
from coordinator.core.events import Appraised
from coordinator.round.exchange import Exchange
from coordinator.trust.scores import Assignment, MemberScore
from coordinator.wire.messages import NeedNote, PartNote
from dht.identity import PeerId

GIVEN_EACH_MAX = 4  # times that one scorer gets one part of ours: messages get lost
ROUNDS_KEPT = 4  # newest ones in which our own contribution is looked into
STANDINGS_MAX = 256  # members of whom we know how they do; who was looked into longest ago is forgotten
ASK_SHARE = 0.25  # of a round's deadline, between two requests for what is missing
PATIENCE_DEADLINES = 2.0  # after which a contribution that is not here is given up


@dataclass(slots=True)
class Owed:
    """A contribution of ours that others look into, and how often each of them got each part."""

    exchange: Exchange
    scorers: tuple[PeerId, ...]
    given: Counter[tuple[PeerId, int]] = field(default_factory=Counter)


@dataclass(slots=True)
class Scoring:
    """A contribution that we look into. `lacking` are partitions that we have still to get."""

    exchange: Exchange
    assignment: Assignment
    lacking: set[int]
    ask_at: float
    ends_at: float
    working: bool = False


@dataclass(slots=True)
class Scorer:
    """One peer's scores, over all fragments. `standings`: of the members that it has checked, the newest last."""

    core: Core
    owed: deque[Owed] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    scoring: Scoring | None = None
    standings: OrderedDict[PeerId, MemberScore] = field(default_factory=OrderedDict)

    # -- beginning

    def close(self, exchange: Exchange, assignment: Assignment | None, now: float) -> list[Action]:
        """A round of ours was certified: take our part in looking into it."""
        if assignment is None or exchange.inputs is None:
            return []
        if assignment.scored == self.core.me:
            self.owed.append(Owed(exchange, assignment.scorers))
        if self.core.me not in assignment.scorers or self.scoring is not None:
            return []
        lacking, patience = set(range(exchange.group.partitions)), PATIENCE_DEADLINES * self.core.pace.round_seconds
        self.scoring = Scoring(exchange, assignment, lacking, now, now + patience)
        return self._ask(self.scoring, now)

    def _ask(self, scoring: Scoring, now: float) -> list[Action]:
        scoring.ask_at = now + ASK_SHARE * self.core.pace.round_seconds
        group, scored = scoring.exchange.group.key.roster_id, scoring.assignment.scored
        notes = (NeedNote(what="part", group=group, partition=one, turn=0) for one in sorted(scoring.lacking))
        return [Send(scored, note) for note in notes]

    # -- messages about rounds that are over

    def give(self, sender: PeerId, note: NeedNote) -> list[Action]:
        """A part of ours, to a member that was drawn to look into it."""
        owed = next((one for one in self.owed if one.exchange.group.key.roster_id == note.group), None)
        if owed is None or owed.exchange.encoded is None or sender not in owed.scorers:
            return []
        roots, place = owed.exchange.encoded.part_roots, (sender, note.partition)
        if note.partition >= len(roots) or owed.given[place] >= GIVEN_EACH_MAX:
            return []
        owed.given[place] += 1
        part = PartNote(group=note.group, partition=note.partition, turn=note.turn)
        return [Send(sender, part, roots[note.partition])]

    def on_part(self, sender: PeerId, note: PartNote, root: bytes | None) -> list[Action]:
        """A part that we have asked for; the last one of them lets us begin."""
        scoring = self.scoring
        if scoring is None or scoring.working or sender != scoring.assignment.scored:
            return []
        inputs, group = scoring.exchange.inputs, scoring.exchange.group
        member = None if inputs is None else inputs.index(sender)
        if inputs is None or member is None or note.group != group.key.roster_id or note.partition >= group.partitions:
            return []
        commit = inputs.commits[member]
        if root != commit.part_roots[note.partition]:
            return []
        scoring.lacking.discard(note.partition)
        if scoring.lacking:
            return []
        scoring.working = True
        windows = (commit.window_first, commit.window_count)
        return [Appraise(group.key, group.parent, sender, commit.part_roots, *windows, scoring.assignment.seed)]

    # -- the result

    def on_appraised(self, event: Appraised) -> list[Action]:
        """What the contribution does, if that could be told."""
        scoring = self.scoring
        if scoring is None or not scoring.working or event.key != scoring.exchange.group.key:
            return []
        self.scoring = None
        if event.found is None:
            return []
        scored = scoring.assignment.scored
        standing = self.standings.pop(scored, MemberScore()).after(event.found)
        self.standings[scored] = standing
        while len(self.standings) > STANDINGS_MAX:
            self.standings.popitem(last=False)
        details: dict[str, object] = {
            "peer": scored,
            "assigned": event.found.assigned,
            "other": event.found.other,
            "rounds": standing.rounds,
            "mean_assigned": standing.assigned,
            "mean_other": standing.other,
        }
        return [Tell("scored", event.key.fragment, event.key.version, details)]

    # -- time

    def tick(self, now: float) -> list[Action]:
        """Ask again, or give up."""
        scoring = self.scoring
        if scoring is None or now < self.next_deadline():
            return []
        if now >= scoring.ends_at:
            self.scoring = None
            return []
        return self._ask(scoring, now)

    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        if self.scoring is None:
            return math.inf
        return self.scoring.ends_at if self.scoring.working else min(self.scoring.ask_at, self.scoring.ends_at)
