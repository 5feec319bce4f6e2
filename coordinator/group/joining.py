"""Joining a group at one base: our joins, the joins we collect, the rosters we issue (design §6.2 steps 1–3).

A `Joining` lives as long as its base is the newest version here. It knows nothing of votes: the fragment's state
machine decides whether our votes leave us free, and takes over once a roster with us in it has come.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import InitVar, dataclass, field

from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, RoundKey
from coordinator.core.context import DEADLINE_DOUBLINGS_MAX, Core
from coordinator.core.quorum import quorum_size
from coordinator.core.timeline import JOIN_SHARE, RETRY_SHARE
from coordinator.group.group import Group, leader_of, read_join
from coordinator.group.leaders import first_attempt_with_leader, first_leaders
from coordinator.group.own_joins import OwnJoins
from coordinator.group.roster_building import REVISIONS_MAX, RosterBuilder, limits_at
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.messages import ATTEMPT_MAX, NETWORKS_MAX, Join
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

GATHERINGS_MAX = 12
ATTEMPTS_TRIED = 10  # after this many attempts in which we only asked, we try the first of them again
ATTEMPTS_AHEAD_MAX = 256  # from ours: so far ahead we listen, and so far one message can move us
VOID_BACKOFF_SHARE = 0.1  # pause after a void attempt, as a share of a round's deadline: lets other fragments go first
JOIN_LIFETIME_DEADLINES = 4  # longest deadlines: peers that drifted apart may meet in an attempt that some tried before


@dataclass(slots=True)
class Joining:
    """The attempt that we ask into, with the joins sent and received for it. `since` is None while we do not ask."""

    core: Core
    chain: Chain
    first_attempt: InitVar[int]
    own: OwnJoins = field(init=False)
    attempt_number: int = field(init=False)
    voids: int = 0
    failures: int = 0  # voids of groups that we were in: only these show that a deadline was too short
    passed: int = 0  # attempts that went by without us: we may have come late, restarted, or caught up with the others
    not_before: float = 0.0
    since: float | None = None
    repeat_at: float = 0.0
    gatherings: dict[int, RosterBuilder] = field(default_factory=dict)
    announced: dict[PeerId, int] = field(default_factory=dict)  # known attempts of members of the active set

    def __post_init__(self, first_attempt: int) -> None:
        self.own, self.attempt_number = OwnJoins(first_attempt), first_attempt

    def deadline_seconds(self, group: Group) -> float:
        """Return the deadline of a group: doubled as often as its leader says, so that all members have the same.

        A leader may lie. So we double it at most once per attempt that failed or went by without us. The attempt's
        number is a limit, too (`VoteLocks.restore`).
        """
        said = self.failures if group.voids is None else group.voids
        return self.core.deadline_seconds(min(said, self.voids + self.passed, group.attempt))

    @property
    def leader(self) -> PeerId:
        """The leader of the attempt that we are in or ask into."""
        return leader_of(self.chain, self.attempt_number)

    def leads(self, attempt: int) -> bool:
        return leader_of(self.chain, attempt) == self.core.me

    # -- asking

    def open(self, contributes: bool, now: float) -> list[Action]:
        """Ask into the first attempt whose leader seems to be live and, if possible, can be called."""
        self._move(first_attempt_with_leader(self.core, self.chain, self.attempt_number, now))
        self.since = now
        return self.ask(contributes, now)

    def ask(self, contributes: bool, now: float) -> list[Action]:
        """Send our join; to more leaders after a void attempt."""
        self.repeat_at = now + RETRY_SHARE * self.core.pace.round_seconds
        self.own.forget_oldest(now)
        self.attempt_number = self.own.open_from(self.attempt_number, now)
        if self.attempt_number > ATTEMPT_MAX:
            return []
        if not self.own.said and not self.voids:
            self.passed = self.attempt_number
        if self.attempt_number not in self.own.said:
            expires = now + JOIN_LIFETIME_DEADLINES * self.core.deadline_seconds(DEADLINE_DOUBLINGS_MAX)
            self.own.said[self.attempt_number] = (expires, self._say_join(contributes, expires))
        order = self.chain.leaders()
        few = not self.voids and len(order) > PEERS_PER_GROUP_MAX  # else tell all: they see if a leader leaves us out
        told = first_leaders(self.chain, self.attempt_number) if few else order
        targets = told if self.core.me in told else (*told, self.core.me)
        return list(self.core.to_all(targets, self.own.said[self.attempt_number][1]))

    def _say_join(self, contributes: bool, expires: float) -> Statement:
        """Sign our join, once per attempt: two different joins for one attempt would be a contradiction."""
        body = Join(
            attempt=self.attempt_number,
            leader=self.leader,
            boot=self.core.boot,
            dialable=self.core.dialable,
            contributes=contributes,
            expires_unix_seconds=int(max(self.core.unix_seconds(expires), 0)),
            networks=self.core.networks[:NETWORKS_MAX],
            admission=self.core.admission.own or None,
        )
        return self.core.sign_statement(
            "join", RoundKey(self.chain.fragment, self.chain.version, b""), self.chain.digest, body
        )

    def meet(self, contributes: bool, now: float) -> list[Action]:
        """Ask again, in the attempt at the median of the others' attempts, so that peers that drifted apart meet.

        If we asked in that attempt before our first step, and it lacks contributors, it would fail. Then we ask
        in the one after it.
        """
        numbers = sorted({**self.announced, self.core.me: self.attempt_number}.values())
        self._move(max(numbers[len(numbers) // 2], self.own.first_attempt))
        if self.asked_too_early(contributes):
            self.attempt_number, self.since = self.attempt_number + 1, now
        return self.ask(contributes, now)

    def asked_too_early(self, contributes: bool) -> bool:
        """Whether the attempt lacks our gradient as we asked before our first step; a second join is not allowed."""
        return contributes and self.current is not None and self.current.lacks(self.core.me)

    def follow(self, gathering: RosterBuilder, contributes: bool, now: float) -> list[Action]:
        """Ask into an attempt that enough others have opened: our own clock is behind theirs.

        We lead this attempt, or we have no part in the newest version and its leader shows us the askers. (In a
        crowd, where not all can ask, tickets and cells decide instead.) Enough is more than a third of the active
        set: else a few keys could call each leader to an attempt of its own, again and again, so that no two meet.
        Founders may have only strangers that ask. For them, and where any peer may certify alone (`min_share` 0:
        labs), K askers are enough, or more than a third of the active set if that is fewer.
        """
        leads, active = self.leads(gathering.attempt), len(self.chain.active_set())
        if leads and (self.chain.version == 0 or self.core.pace.min_share == 0.0):
            opened = gathering.contributors() >= min(quorum_size(self.core.pace, active), active // 3 + 1)
        else:
            newcomer = self.core.me not in self.chain.newest_roster() and not self.core.crowded(self.chain, now)
            opened = (leads or newcomer) and gathering.is_open()
        if not opened:
            return []
        self._move(gathering.attempt)
        self.since = now
        return self.ask(contributes, now)

    def _move(self, attempt: int) -> None:
        """Move on to this attempt; the ones in between went by without us."""
        self.passed += max(0, attempt - self.attempt_number)
        self.attempt_number = attempt

    def void(self, now: float) -> None:
        """Give up the attempt and go on to the next one, with a longer deadline if we were in its group."""
        self.failures += self.since is None
        self.since = None
        self.attempt_number = _next_attempt(self.attempt_number, self.own.only_asked())
        self.voids += 1
        self.not_before = now + VOID_BACKOFF_SHARE * self.core.pace.round_seconds
        for gathering in self.gatherings.values():
            gathering.not_before = self.not_before

    def use_up(self, attempt: int) -> None:
        """Mark this attempt and earlier ones as over for good."""
        self.own.use_up(attempt)
        self.attempt_number = max(self.attempt_number, self.own.first_attempt)

    # -- groups

    def enter(self, group: Group) -> None:
        """Stop asking, as a roster of this attempt includes us."""
        self.own.speak(group)
        self.since, self.attempt_number = None, group.attempt

    # -- collecting

    def shun(self, peer: PeerId) -> None:
        """Forget the joins of a banned peer."""
        self.announced.pop(peer, None)
        for gathering in self.gatherings.values():
            gathering.joins.pop(peer, None)

    def hear(self, statement: Statement, now: float, at_first_hand: bool = True) -> RosterBuilder | None:
        """Keep a peer's join; return the roster builder for which it is news. Raises PeerError if it does not count."""
        unix_seconds = self.core.unix_seconds(now)
        join, sender = read_join(statement, self.chain, unix_seconds), PeerId(statement.sender)
        if sender in self.core.bans:
            raise PeerError("is banned")
        if refused := self.core.admission.seat_refusal(sender, join.admission or b"", join.contributes, unix_seconds):
            raise PeerError(f"is not let in: {refused}")
        furthest = self.attempt_number + ATTEMPTS_AHEAD_MAX
        # a join shown by others may be old: its signer may ask elsewhere by now
        if sender in self.chain.active_set() and (at_first_hand or sender not in self.announced):
            self.announced[sender] = min(join.attempt, furthest)  # so we reach a peer that asked alone for long
        if join.attempt > furthest:
            raise PeerError("joins an attempt that is far off")
        gathering = self._gathering(join.attempt)
        return gathering if gathering is not None and gathering.add(statement, join, now) else None

    def _gathering(self, attempt: int) -> RosterBuilder | None:
        """Return the roster builder of an attempt; None if it is used up or further away than those that we keep."""
        if attempt < self.own.first_attempt:
            return None
        if attempt not in self.gatherings:
            if len(self.gatherings) >= GATHERINGS_MAX and not self._make_room_to_listen(attempt):
                return None
            self.gatherings[attempt] = RosterBuilder(self.core, self.chain, attempt, self.not_before)
        return self.gatherings[attempt]

    def _make_room_to_listen(self, attempt: int) -> bool:
        """Forget the attempt furthest from ours, or an old one that we led and that is used up from then on."""
        unused = [number for number, one in self.gatherings.items() if one.roster is None]
        furthest = max(unused, key=lambda number: abs(number - self.attempt_number), default=None)
        if furthest is not None:
            if abs(furthest - self.attempt_number) <= abs(attempt - self.attempt_number):
                return False
            del self.gatherings[furthest]
            return True
        oldest = min(self.gatherings)
        if oldest >= self.attempt_number:
            return False
        del self.gatherings[oldest]
        self.use_up(oldest)
        return True

    def close(self, gathering: RosterBuilder, silent: Set[PeerId], minor_allowed: bool, now: float) -> list[Action]:
        """Issue or revise the roster of an attempt that we lead, if it is time to."""
        gathering.failures = self.failures
        trainers = self.core.presence.heard_trainers(now)
        asking = {peer for peer in trainers if self.core.has_ticket(self.chain, peer, now)}
        waited_for = asking if gathering.awaits_strangers(now) else asking & self.chain.known()
        expected = waited_for | (self.chain.active_set() & gathering.joins.keys())
        actions = gathering.close(expected, silent, minor_allowed, now)
        if gathering.roster is not None or self.core.crowded(self.chain, now):
            return actions
        return gathering.summon(asking - gathering.joins.keys())

    def lacking(self, group: Group, silent: Set[PeerId]) -> list[Statement]:
        """Return known joins that a roster leaves out; none after its last revision, or if we showed them before."""
        gathering = self.gatherings.get(group.attempt)
        if gathering is None or group.revision >= REVISIONS_MAX or group.leader == self.core.me:
            return []
        return gathering.resend_joins(group, silent)

    def check_limits(self, group: Group) -> None:
        """Raise PeerError if no roster may have these members (`coordinator.chain.newcomer_limits`)."""
        if self.core.admission.surplus(group.members, group.passes):
            raise PeerError("a roster with more than an invite lets in")
        refusal = limits_at(self.core, self.chain, group.attempt, group.networks).refusal(group.members)
        if refusal is not None:
            raise PeerError(f"a roster that {refusal}")

    # -- time

    @property
    def current(self) -> RosterBuilder | None:
        """The roster builder of the attempt that we are in or ask into."""
        return self.gatherings.get(self.attempt_number)

    def gives_up_at(self) -> float | None:
        """Return when we stop waiting for a roster; None while we do not wait."""
        # not doubled like a round's deadline: a silent leader does not show that rounds are slow
        return None if self.since is None else self.since + JOIN_SHARE * self.core.pace.round_seconds

    def deadlines(self, now: float) -> list[float]:
        """Return the next times at which there may be something to do."""
        gives_up_at, gathering = self.gives_up_at(), self.current
        if gives_up_at is None:
            return []
        ends = () if gathering is None else (gathering.strangers_until(), gathering.due_at())
        return [gives_up_at, self.repeat_at, *(end for end in ends if end > now)]


def _next_attempt(attempt: int, asked: Set[int]) -> int:
    """Return the attempt after this one; after many in which we only asked, cycle through these again.

    Else a peer that asks alone while a vote binds the others would use up the attempts at which they come back.
    """
    if len(asked) < ATTEMPTS_TRIED:
        return attempt + 1
    return min((one for one in asked if one > attempt), default=min(asked))
