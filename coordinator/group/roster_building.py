"""Gathering joins for one attempt, and issuing its roster as the leader (design §6.2 steps 2–3)."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field
from types import MappingProxyType

from coordinator.chain.chain import Chain, beacon_order
from coordinator.chain.newcomer_limits import Networks, NewcomerLimits
from coordinator.core.actions import Action, RoundKey
from coordinator.core.context import Core
from coordinator.core.quorum import Gathered, close_roster, quorum_size
from coordinator.core.tickets import seated
from coordinator.core.timeline import QUORUM_SHARE, STRANGERS_SHARE
from coordinator.group.group import Group, leader_of
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.messages import Join, Roster
from dht.identity import PeerId
from dht.statement import Statement, digest_of

REVISIONS_MAX = 2  # a roster is revised at most this often for joins that its first draft lacks
JOINS_MAX = 2 * PEERS_PER_GROUP_MAX
SUMMONED_MAX = 16  # strangers called per attempt: keys cost nothing, and we have to dial each one
NOBODY: Networks = MappingProxyType({})


def limits_at(core: Core, chain: Chain, attempt: int, named: Networks) -> NewcomerLimits:
    """Return the limits of a roster of this attempt; `named` are the networks that joins name."""
    founders = chain.rules.founders
    networks = {peer: core.networks_of(peer, own) for peer, own in named.items()}
    return NewcomerLimits(chain.rules.trust, leader_of(chain, attempt), chain.known(), founders, networks)


@dataclass(slots=True)
class RosterBuilder:
    """The joins of one attempt. All peers keep the joins they get: members check the leader's roster against them."""

    core: Core
    chain: Chain
    attempt: int
    not_before: float = 0.0  # peers whose last attempt was void, like ours, do not ask before this time
    joins: dict[PeerId, tuple[Statement, Join]] = field(default_factory=dict)
    first_at: float | None = None
    quorum_at: float | None = None
    roster: Statement | None = None
    members: tuple[PeerId, ...] = ()  # the members in `roster`
    passed_over: Set[PeerId] = frozenset()  # left out of `roster`, as they were silent in the attempt before
    revision: int = -1
    resent_revision: int = -1  # the newest revision of another leader's roster for which we have sent the lacking joins
    summoned: bool = False
    failures: int = 0  # void groups, as the leader counts them
    reason: str = "nobody has joined"

    def add(self, statement: Statement, join: Join, now: float) -> bool:
        """Keep a join; return True if it is news. A join after a restart replaces the one from before it.

        A late join from before a restart replaces the newer one, too, until the peer repeats its own. We refuse old
        joins of our own key: a roster with one would speak for our earlier process, which may have said otherwise.
        """
        sender = PeerId(statement.sender)
        if sender in self.core.bans or (sender == self.core.me and join.boot != self.core.boot):
            return False
        known = self.joins.get(sender)
        if known is not None and known[1].boot == join.boot:
            return False
        if known is None and len(self.joins) >= JOINS_MAX and not self._make_room(sender):
            return False
        self.joins[sender] = (statement, join)
        if self.first_at is None and sender in self._counting():
            self.first_at = now
        if self.quorum_at is None and self.contributors() >= quorum_size(self.core.pace, len(self.chain.active_set())):
            self.quorum_at = now
        return True

    def _make_room(self, sender: PeerId) -> bool:
        """Drop a stranger's join in favour of an active member's: keys cost nothing and must not shut members out."""
        active = self.chain.active_set()
        strangers = self.joins.keys() - active
        if sender not in active or not strangers:
            return False
        del self.joins[beacon_order(self.chain.beacon(), strangers)[-1]]
        return True

    def contributors(self) -> int:
        """Count the joined peers that bring an outer gradient and have a say in when a round begins."""
        return sum(self.joins[peer][1].contributes for peer in self._counting())

    def lacks(self, peer: PeerId) -> bool:
        """Whether contributors are too few while this peer has joined without a gradient and its vote is not needed.

        Before the first version no vote is needed, not even a founder's: votes cannot replace contributions.
        """
        join = self.joins.get(peer)
        few = self.roster is None and self.contributors() < self.core.pace.min_group
        is_spared = self.chain.version == 0 or peer not in self.chain.active_set()
        return few and join is not None and not join[1].contributes and is_spared

    def _counting(self) -> Set[PeerId]:
        """Return the joined peers that start our clocks; newcomers do not if the run bounds them (docs/adr/0030)."""
        joined = self.joins.keys()
        return joined & self.chain.known() if self.chain.rules.trust.bounds_newcomers else joined

    def _asking(self) -> frozenset[PeerId]:
        """Return the members of the active set that have joined with an outer gradient."""
        active = self.chain.active_set()
        return frozenset(peer for peer, (_, join) in self.joins.items() if join.contributes and peer in active)

    def is_open(self) -> bool:
        """Whether more than a third of the active set asks with an outer gradient, so that one of them is honest."""
        return len(self._asking()) > len(self.chain.active_set()) // 3

    def summon(self, missing: Set[PeerId]) -> list[Action]:
        """Show the active members' joins to missing peers that have no part in the newest version.

        They do not know when it was made, nor when the next one is due. Else they would let a period pass before they
        ask (`Joining.follow`).
        """
        late = missing - self.chain.newest_roster()
        if self.summoned or not late or not self.is_open():
            return []
        self.summoned = True
        enough = len(self.chain.active_set()) // 3 + 1
        shown = beacon_order(self.chain.beacon(), self._asking())[:enough]
        called = tuple(sorted(late & self.chain.known())) + self._drawn(late - self.chain.known())
        return [action for peer in shown for action in self.core.to_all(called, self.joins[peer][0])]

    def _drawn(self, strangers: Set[PeerId]) -> tuple[PeerId, ...]:
        """Draw the strangers to call in this attempt; each attempt draws anew, so that each stranger gets its turn.

        Peers that have ever sent us a message come first. So a peer that asks when it believes it is time is called
        the next time, however many keys only publish presence.
        """
        draw = digest_of(b"muster-summon", self.chain.beacon(), self.attempt.to_bytes(8, "big"))
        spoken = strangers & self.core.presence.spoken
        order = beacon_order(draw, spoken) + beacon_order(draw, strangers - spoken)
        return order[:SUMMONED_MAX]

    def lacking(self, members: Set[PeerId], silent: Set[PeerId], named: Networks = NOBODY) -> list[Statement]:
        """Return the joins that a roster of these members leaves out, in beacon order as far as there is room.

        `named` are the networks of the roster's members, whose joins may not have reached us but take room as well.
        """
        return [self.joins[peer][0] for peer in self._order(silent, named) if peer not in members]

    def resend_joins(self, group: Group, silent: Set[PeerId]) -> list[Statement]:
        """Return the joins that this roster lacks, once per revision.

        A leader that repeats its roster knows more than we do: which peers were silent, say. If we kept out of it,
        the others might lack the votes they need.
        """
        if group.revision <= self.resent_revision:
            return []
        lacking = self.lacking(frozenset(group.members), silent, group.networks)
        self.resent_revision = group.revision if lacking else self.resent_revision
        return lacking

    def left_out(self, group: Group, silent: Set[PeerId]) -> int:
        """Count the contributors that this roster would gain with all seated members of the active set that asked.

        A peer that gets a seat in place of another, as within the limit of one network, does not count.
        """
        seated = (self._asking() | group.contributors).intersection(self._order(silent, group.networks))
        return max(0, len(seated) - len(group.contributors))

    def _order(self, silent: Set[PeerId], named: Networks = NOBODY) -> tuple[PeerId, ...]:
        """Return the peers with a seat in the roster, in beacon order."""
        order, limits = self._admitted(silent, named)
        return limits.admitted(seated(order, self.chain.newest_roster()))

    def _admitted(self, silent: Set[PeerId], named: Networks = NOBODY) -> tuple[tuple[PeerId, ...], NewcomerLimits]:
        """Return the peers admitted to a roster of unlimited length, in beacon order, and the limits behind it."""
        joined = {peer: frozenset(join.networks) for peer, (_, join) in self.joins.items() if peer not in silent}
        all_named = {**joined, **named}
        limits = limits_at(self.core, self.chain, self.attempt, all_named)
        order = beacon_order(self.chain.beacon(), all_named)
        surplus = self.core.admission.surplus(order, {peer: self.joins[peer][1].admission or b"" for peer in joined})
        return limits.admitted([peer for peer in order if peer not in surplus]), limits

    def drop_inadmissible(self, now: float) -> bool:
        """Forget joins of peers that may not have a seat any more; return whether our roster includes one of them."""
        door, unix_seconds = self.core.admission, self.core.unix_seconds(now)
        for peer, (_, join) in list(self.joins.items()):
            if door.seat_refusal(peer, join.admission or b"", join.contributes, unix_seconds):
                del self.joins[peer]
        return not self.joins.keys() >= set(self.members)

    def _grace_since(self) -> float:
        """Return when the grace window starts: when the quorum was reached, or when we stop waiting for it.

        K decides when grace starts, not whether to go on. Else a live peer that does not join (bound by a vote, or
        unreachable) would stop a swarm of K peers. After a void attempt grace starts no earlier than `not_before`,
        when others are free again, though peers that saw no roster may ask already.
        """
        if self.first_at is None:
            return math.inf
        patience_until = self.first_at + QUORUM_SHARE * self.core.pace.round_seconds
        since = patience_until if self.quorum_at is None else min(self.quorum_at, patience_until)
        return max(since, self.not_before)

    def due_at(self) -> float:
        """Return when the grace window ends."""
        return self._grace_since() + self.core.grace_seconds()

    def strangers_until(self) -> float:
        """Return until when we wait for peers that the chain does not know: presence costs nothing (docs/adr/0042)."""
        return self._grace_since() + STRANGERS_SHARE * self.core.pace.round_seconds

    def awaits_strangers(self, now: float) -> bool:
        return now < self.strangers_until()

    def close(self, expected: Set[PeerId], silent: Set[PeerId], minor_allowed: bool, now: float) -> list[Action]:
        """Issue the roster if it is time; revise it for joins that came after the first draft.

        It leaves out peers that were `silent` in the void attempt just before, if the others are enough (step 2).
        """
        dropped = self.drop_inadmissible(now)
        if self.roster is not None:
            lacking = self.lacking(frozenset(self.members), self.passed_over)
            changed = lacking or dropped or any(peer in self.core.bans for peer in self.members)
            return self._issue(self.passed_over, now) if changed and self.revision < REVISIONS_MAX else []
        self._drop_expired(now)
        for left_out in (silent, frozenset[PeerId]()) if silent else (silent,):
            closing, self.reason = close_roster(self._gathered(expected, left_out, minor_allowed), self.core.pace, now)
            if closing:
                return self._issue(left_out, now)
        return []

    def _drop_expired(self, now: float) -> None:
        """Drop expired joins: every peer refuses a roster with one."""
        unix_seconds = self.core.unix_seconds(now)
        for peer in [peer for peer, (_, join) in self.joins.items() if join.expires_unix_seconds < unix_seconds]:
            del self.joins[peer]

    def _gathered(self, expected: Set[PeerId], left_out: Set[PeerId], minor_allowed: bool) -> Gathered:
        joined = frozenset(self._admitted(left_out)[0])
        return Gathered(
            joined=joined,
            contributors=sum(self.joins[peer][1].contributes for peer in joined),
            expected=expected - left_out - (self.joins.keys() - joined),
            active=self.chain.active_set(),
            grace_since=self._grace_since(),
            grace_seconds=self.core.grace_seconds(),
            minor_allowed=minor_allowed,
        )

    def _issue(self, left_out: Set[PeerId], now: float) -> list[Action]:
        self.revision += 1
        self.members, self.passed_over = self._order(left_out), left_out
        joins = tuple(self.joins[peer][0] for peer in self.members)
        body = Roster(
            attempt=self.attempt,
            revision=self.revision,
            joins=joins,
            convictions=self.core.bans.among(self.chain.active_set()),
            voids=self.failures,
        )
        key = RoundKey(self.chain.fragment, self.chain.version, b"")
        self.roster = self.core.sign_statement("roster", key, self.chain.digest, body)
        return list(self.core.to_all(self.members, self.roster))
