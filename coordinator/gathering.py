"""A leader gathers joins for one attempt and issues the roster (design §6.2 steps 2–3)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from coordinator.actions import Action, RoundKey
from coordinator.chain import Chain, beacon_order
from coordinator.core import Core
from coordinator.manifest import PEERS_PER_GROUP_MAX
from coordinator.messages import Join, Roster
from coordinator.quorum import Gathered, close_roster, grace_seconds, quorum_size
from dht.identity import PeerId
from dht.statement import Statement

REVISIONS_MAX = 2  # a roster is revised this often for joins that its first draft lacks


@dataclass(slots=True)
class Gathering:
    """Joins of one attempt. Everybody who gets joins keeps them: members check the leader's roster against theirs."""

    core: Core
    chain: Chain
    attempt: int
    joins: dict[PeerId, tuple[Statement, Join]] = field(default_factory=dict)
    first_at: float | None = None
    quorum_at: float | None = None
    closed_at: float | None = None
    roster: Statement | None = None
    revision: int = -1
    reason: str = "nobody has joined"

    def add(self, statement: Statement, join: Join, now: float) -> bool:
        """Keep a join; True if it says something new. A rejoin after a restart replaces the older life's."""
        sender = PeerId(statement.sender)
        known = self.joins.get(sender)
        if known is not None and known[1].boot == join.boot:
            return False
        if known is None and len(self.joins) >= 2 * PEERS_PER_GROUP_MAX:
            return False
        self.joins[sender] = (statement, join)
        if self.first_at is None:
            self.first_at = now
        if self.quorum_at is None and self.contributors() >= quorum_size(self.core.pace, len(self.chain.active_set())):
            self.quorum_at = now
        return True

    def contributors(self) -> int:
        return sum(join.contributes for _, join in self.joins.values())

    def lacking(self, members: Set[PeerId]) -> list[Statement]:
        """Joins that a roster of these members leaves out, in beacon order as far as there is room."""
        order = beacon_order(self.chain.beacon(), self.joins)[:PEERS_PER_GROUP_MAX]
        return [self.joins[peer][0] for peer in order if peer not in members]

    def grace_seconds(self) -> float:
        rate = self.core.steps_per_second
        step_seconds = 1 / rate if rate > 0 else self.core.pace.round_seconds / self.core.pace.steps_per_version
        return grace_seconds(self.core.pace, step_seconds, self.core.estimates)

    def due_at(self) -> float | None:
        """When the grace window ends."""
        return None if self.quorum_at is None else self.quorum_at + self.grace_seconds()

    def close(self, expected: Set[PeerId], minor_allowed: bool, now: float) -> list[Action]:
        """Issue the roster if it is time; revise it for joins that came after the first draft."""
        if self.roster is not None:
            return self._issue(now) if self._outdated() else []
        gathered = Gathered(
            joined=self.joins.keys(),
            contributors=self.contributors(),
            expected=expected,
            active=self.chain.active_set(),
            quorum_since=self.quorum_at,
            grace_seconds=self.grace_seconds(),
            minor_allowed=minor_allowed,
        )
        closing, self.reason = close_roster(gathered, self.core.pace, now)
        return self._issue(now) if closing else []

    def _outdated(self) -> bool:
        if self.roster is None or self.revision >= REVISIONS_MAX:
            return False
        listed = self.roster.read(Roster)
        return bool(self.lacking({PeerId(join.sender) for join in listed.joins}))

    def _issue(self, now: float) -> list[Action]:
        self.revision += 1
        self.closed_at = now
        members = beacon_order(self.chain.beacon(), self.joins)[:PEERS_PER_GROUP_MAX]
        joins = tuple(self.joins[peer][0] for peer in members)
        body = Roster(attempt=self.attempt, revision=self.revision, joins=joins)
        key = RoundKey(self.chain.fragment, self.chain.version, b"")
        self.roster = self.core.say("roster", key, self.chain.digest, body)
        return list(self.core.to_all(members, self.roster))
