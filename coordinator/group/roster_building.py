"""A leader gathers joins for one attempt and issues the roster (design §6.2 steps 2–3)."""

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

REVISIONS_MAX = 2  # a roster is revised this often for joins that its first draft lacks
JOINS_MAX = 2 * PEERS_PER_GROUP_MAX
SUMMONED_MAX = 16  # strangers in one attempt: keys cost nothing, and each that we write to has to be dialled
NOBODY: Networks = MappingProxyType({})


def limits_at(core: Core, chain: Chain, attempt: int, named: Networks) -> NewcomerLimits:
    """The bounds of a roster of this attempt; `named` are the networks that joins name."""
    founders = chain.rules.founders
    networks = {peer: core.networks_of(peer, own) for peer, own in named.items()}
    return NewcomerLimits(chain.rules.trust, leader_of(chain, attempt), chain.known(), founders, networks)


@dataclass(slots=True)
class RosterBuilder:
    """Joins of one attempt. Everybody who gets joins keeps them: members check the leader's roster against theirs."""

    core: Core
    chain: Chain
    attempt: int
    not_before: float = 0.0  # others whose last attempt was void, as ours was, do not ask before
    joins: dict[PeerId, tuple[Statement, Join]] = field(default_factory=dict)
    first_at: float | None = None
    quorum_at: float | None = None
    roster: Statement | None = None
    members: tuple[PeerId, ...] = ()  # of `roster`
    passed_over: Set[PeerId] = frozenset()  # by `roster`, since they were silent in the attempt before
    revision: int = -1
    insisted: int = -1  # the newest revision of another's roster that we have shown what it lacks
    summoned: bool = False
    failures: int = 0  # as the leader counts them
    reason: str = "nobody has joined"

    def add(self, statement: Statement, join: Join, now: float) -> bool:
        """Keep a join; True if it says something new. A rejoin after a restart replaces the older life's.

        An older life's join that comes late does so too, until the living repeats its own. Not ours: what we issue with
        it would seem to be said by that life, which may have said something else.
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
        """Drop a stranger's join for one of the active set: keys cost nothing and must not shut the known ones out."""
        active = self.chain.active_set()
        strangers = self.joins.keys() - active
        if sender not in active or not strangers:
            return False
        del self.joins[beacon_order(self.chain.beacon(), strangers)[-1]]
        return True

    def contributors(self) -> int:
        """Joined peers that bring an outer gradient, and have a say in when a round begins."""
        return sum(self.joins[peer][1].contributes for peer in self._counting())

    def lacks(self, peer: PeerId) -> bool:
        """Whether there are too few contributors while this one has joined with nothing, and its vote is not needed.

        Before the first version that goes for founders, too: votes make no version of too few contributions.
        """
        join = self.joins.get(peer)
        few = self.roster is None and self.contributors() < self.core.pace.min_group
        is_spared = self.chain.version == 0 or peer not in self.chain.active_set()
        return few and join is not None and not join[1].contributes and is_spared

    def _counting(self) -> Set[PeerId]:
        """Whose joins move our clocks: where newcomers are bounded, theirs do not (docs/adr/0030)."""
        joined = self.joins.keys()
        return joined & self.chain.known() if self.chain.rules.trust.bounds_newcomers else joined

    def _asking(self) -> frozenset[PeerId]:
        """Members of the active set that have joined with an outer gradient."""
        active = self.chain.active_set()
        return frozenset(peer for peer, (_, join) in self.joins.items() if join.contributes and peer in active)

    def is_open(self) -> bool:
        """Whether so many of the active set ask, with an outer gradient, that one of them is honest."""
        return len(self._asking()) > len(self.chain.active_set()) // 3

    def summon(self, missing: Set[PeerId]) -> list[Action]:
        """Show those of them who have no part in the newest version who asks: they cannot know when it was made.

        So they do not know when the next one is due, and would let a period pass before they ask (`Joining.follow`).
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
        """As many of them as are called in one attempt; the next draws anew, so that each has its turn.

        First those that have ever said something to us: a peer that asks when it believes it is time is called the next
        time, however many keys only publish presence.
        """
        draw = digest_of(b"muster-summon", self.chain.beacon(), self.attempt.to_bytes(8, "big"))
        spoken = strangers & self.core.presence.spoken
        order = beacon_order(draw, spoken) + beacon_order(draw, strangers - spoken)
        return order[:SUMMONED_MAX]

    def lacking(self, members: Set[PeerId], silent: Set[PeerId], named: Networks = NOBODY) -> list[Statement]:
        """Joins that a roster of these members leaves out, in beacon order as far as there is room.

        `named` are the networks of the roster's members: their joins may not have reached us, and take room as well.
        """
        return [self.joins[peer][0] for peer in self._order(silent, named) if peer not in members]

    def insist(self, group: Group, silent: Set[PeerId]) -> list[Statement]:
        """What this roster lacks, once: a leader that shows it again knows what we know not, as who was silent.

        A peer that kept out of it then would take the others' votes with it, if they need each one.
        """
        if group.revision <= self.insisted:
            return []
        lacking = self.lacking(frozenset(group.members), silent, group.networks)
        self.insisted = group.revision if lacking else self.insisted
        return lacking

    def left_out(self, group: Group, silent: Set[PeerId]) -> int:
        """How many more contributors this roster would have with all of the active set that have asked and have a seat.

        Who has a seat instead of another, as within the bound of one network, leaves nobody out.
        """
        seated = (self._asking() | group.contributors).intersection(self._order(silent, group.networks))
        return max(0, len(seated) - len(group.contributors))

    def _order(self, silent: Set[PeerId], named: Networks = NOBODY) -> tuple[PeerId, ...]:
        """Who has a place in the roster."""
        order, limits = self._admitted(silent, named)
        return limits.admitted(seated(order, self.chain.newest_roster()))

    def _admitted(self, silent: Set[PeerId], named: Networks = NOBODY) -> tuple[tuple[PeerId, ...], NewcomerLimits]:
        """Who would have one in a roster of any length, in beacon order, and the limits behind it."""
        joined = {peer: frozenset(join.networks) for peer, (_, join) in self.joins.items() if peer not in silent}
        all_named = {**joined, **named}
        limits = limits_at(self.core, self.chain, self.attempt, all_named)
        order = beacon_order(self.chain.beacon(), all_named)
        surplus = self.core.admission.surplus(order, {peer: self.joins[peer][1].admission or b"" for peer in joined})
        return limits.admitted([peer for peer in order if peer not in surplus]), limits

    def turn_away(self, now: float) -> bool:
        """Forget joins of peers that have no seat any more; whether one of them is in our roster."""
        door = self.core.admission
        for peer, (_, join) in list(self.joins.items()):
            if door.seat_refusal(peer, join.admission or b"", join.contributes, now):
                del self.joins[peer]
        return not self.joins.keys() >= set(self.members)

    def _grace_since(self) -> float:
        """When the quorum was reached, or when it is no longer waited for: K says when grace starts, not who may go on.

        Without that, a peer that is live and does not join (bound by a vote, or deaf) would stop a swarm of K peers.
        After a void attempt it begins when others are free again, though some had been shown no roster and ask already.
        """
        if self.first_at is None:
            return math.inf
        patience_until = self.first_at + QUORUM_SHARE * self.core.pace.round_seconds
        since = patience_until if self.quorum_at is None else min(self.quorum_at, patience_until)
        return max(since, self.not_before)

    def due_at(self) -> float:
        """When the grace window ends."""
        return self._grace_since() + self.core.grace_seconds()

    def strangers_until(self) -> float:
        """How long we wait for a peer that the chain does not know: presence costs nothing (docs/adr/0042)."""
        return self._grace_since() + STRANGERS_SHARE * self.core.pace.round_seconds

    def awaits_strangers(self, now: float) -> bool:
        return now < self.strangers_until()

    def close(self, expected: Set[PeerId], silent: Set[PeerId], minor_allowed: bool, now: float) -> list[Action]:
        """Issue the roster if it is time; revise it for joins that came after the first draft.

        A peer that was `silent` in a void attempt just before is left out, as long as the others are enough (step 2).
        """
        turned_away = self.turn_away(now)
        if self.roster is not None:
            lacking = self.lacking(frozenset(self.members), self.passed_over)
            changed = lacking or turned_away or any(peer in self.core.bans for peer in self.members)
            return self._issue(self.passed_over, now) if changed and self.revision < REVISIONS_MAX else []
        self._drop_expired(now)
        for left_out in (silent, frozenset[PeerId]()) if silent else (silent,):
            closing, self.reason = close_roster(self._gathered(expected, left_out, minor_allowed), self.core.pace, now)
            if closing:
                return self._issue(left_out, now)
        return []

    def _drop_expired(self, now: float) -> None:
        """A roster with a join that has expired is refused by everybody."""
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
        self.roster = self.core.say("roster", key, self.chain.digest, body)
        return list(self.core.to_all(self.members, self.roster))
