"""One fragment's life at one peer: which attempt we are in, what we are bound by, and which version comes next.

Sans-IO. `Attempt` is one group; this machine decides when to join which attempt (design §6.2 steps 1–2), keeps the
promise of a vote (step 9), and moves the chain on when a certificate appears, whoever made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from coordinator.actions import Action, Adopt, Discard, FetchState, Publish, RoundKey, Send, Tell, VoteRecord
from coordinator.attempt import Attempt
from coordinator.certificate import Certificate
from coordinator.chain import Chain
from coordinator.core import Core
from coordinator.gathering import REVISIONS_MAX, Gathering
from coordinator.group import Group, leader_of, read_group, read_join
from coordinator.messages import CertificateNote, Join, NeedNote, PartNote
from coordinator.quorum import quorum_size
from coordinator.timeline import JOIN_SHARE, LOCK_DEADLINES, RETRY_SHARE, Timeline
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

LEADERS_TOLD = 3  # a join goes to the attempt's leader and the next two
PAST_ATTEMPTS_MAX = 6
GATHERINGS_MAX = 12
VOID_BACKOFF_SHARE = 0.1  # of a round's deadline: lets other fragments pass
FETCH_RETRY_SECONDS = 1.0
MINOR_INTERVALS = 3.0  # expected intervals without a full certificate before a minor one may be made (design §6.3)
JOIN_LIFETIME_DEADLINES = 4
BASES_LEFT_MAX = 16


@dataclass(slots=True)
class FragmentMachine:
    """The protocol of one fragment. `held` is the newest version whose state we have; the chain may be ahead of it."""

    core: Core
    chain: Chain
    held: int
    certified_at: float  # when the newest full certificate was made or learnt
    counted_from: float  # since when inner steps count towards the next version
    attempt_number: int = 0
    voids: int = 0
    not_before: float = 0.0
    bound_until: float = 0.0  # by a vote from before a restart, or from before we left this base for another branch
    first_attempt: int = 0  # earlier ones were used up before we left this base
    left: dict[bytes, tuple[int, float]] = field(default_factory=dict)  # per base: next free attempt, end of the lock
    joining_since: float | None = None
    joins_said: dict[int, Statement] = field(default_factory=dict)
    join_repeat_at: float = 0.0
    gatherings: dict[int, Gathering] = field(default_factory=dict)
    announced: dict[PeerId, int] = field(default_factory=dict)
    attempt: Attempt | None = None
    past: list[Attempt] = field(default_factory=list)
    fetch_again_at: float | None = None
    unadopted: Adopt | None = None  # a version with our work in it whose state has still to come

    # -- state

    @property
    def index(self) -> int:
        return self.chain.fragment

    @property
    def ready(self) -> bool:
        """Whether we hold the newest version and so may take part in its successor."""
        return self.held == self.chain.version

    @property
    def busy(self) -> bool:
        """Whether a round of ours is in flight."""
        return self.attempt is not None or self.joining_since is not None

    def attempts(self) -> list[Attempt]:
        return [*([self.attempt] if self.attempt is not None else []), *self.past]

    def bound(self, now: float) -> bool:
        """Whether a vote still forbids us to enter another attempt."""
        return now < self.bound_until or any(attempt.locked(now) for attempt in self.attempts())

    def bind(self, record: VoteRecord, now: float) -> None:
        """Honour a vote that an earlier life of ours gave."""
        if record.parent == self.chain.digest:
            self.bound_until = now + LOCK_DEADLINES * self.core.deadline_seconds(record.attempt)

    def interval_seconds(self) -> float:
        """Expected time between two versions of this fragment."""
        rate = self.core.steps_per_second
        return self.core.pace.steps_per_version / rate if rate > 0 else self.core.pace.round_seconds

    def minor_allowed(self, now: float) -> bool:
        return self.chain.version > 0 and now >= self.certified_at + MINOR_INTERVALS * self.interval_seconds()

    def wanted(self, now: float) -> bool:
        """Whether we should take part: learners always; a witness only where the active set lacks votes without it."""
        if self.core.contributes:
            return True
        active = self.chain.active_set()
        others = active & self.core.presence.trainers(now)
        return self.core.me in active and len(others) <= self.core.pace.min_share * len(active)

    # -- joining

    def open(self, now: float) -> list[Action]:
        """Enter the first attempt whose leader we believe to be there."""
        if self.busy or not self.ready or self.bound(now) or not self.wanted(now):
            return []
        leaders = self.chain.leaders()
        for skipped in range(len(leaders)):
            leader = leaders[(self.attempt_number + skipped) % len(leaders)]
            if leader == self.core.me or self.core.presence.is_live(leader, now):
                self.attempt_number += skipped
                break
        self.joining_since = now
        return self._join(now)

    def _join(self, now: float) -> list[Action]:
        self.join_repeat_at = now + RETRY_SHARE * self.core.deadline_seconds(self.voids)
        if self.attempt_number not in self.joins_said:
            self.joins_said[self.attempt_number] = self._say_join(now)
        order = self.chain.leaders()
        start = self.attempt_number % len(order)
        told = order if self.voids else (order[start:] + order[:start])[:LEADERS_TOLD]
        targets = told if self.core.me in told else (*told, self.core.me)
        return list(self.core.to_all(targets, self.joins_said[self.attempt_number]))

    def _say_join(self, now: float) -> Statement:
        """Signed once per attempt: two different joins for one attempt would be a contradiction."""
        expires = self.core.unix_seconds(now) + JOIN_LIFETIME_DEADLINES * self.core.deadline_seconds(self.voids)
        body = Join(
            attempt=self.attempt_number,
            leader=leader_of(self.chain, self.attempt_number),
            boot=self.core.boot,
            dialable=self.core.dialable,
            contributes=self.core.contributes,
            expires_unix_seconds=int(max(expires, 0)),
        )
        return self.core.say("join", RoundKey(self.index, self.chain.version, b""), self.chain.digest, body)

    def on_join(self, statement: Statement, now: float) -> list[Action]:
        """Somebody wants to take part in the next version."""
        join = read_join(statement, self.chain, self.core.unix_seconds(now))
        self.announced[PeerId(statement.sender)] = join.attempt
        gathering = self._gathering(join.attempt)
        if gathering is None or not gathering.add(statement, join, now):
            return []
        return self._lead(gathering, now)

    def _gathering(self, attempt: int) -> Gathering | None:
        if attempt not in self.gatherings:
            if len(self.gatherings) >= GATHERINGS_MAX:
                unused = [number for number, one in self.gatherings.items() if one.roster is None]
                furthest = max(unused, key=lambda number: abs(number - self.attempt_number), default=attempt)
                if abs(furthest - self.attempt_number) <= abs(attempt - self.attempt_number):
                    return None
                del self.gatherings[furthest]
            self.gatherings[attempt] = Gathering(self.core, self.chain, attempt)
        return self.gatherings[attempt]

    def _lead(self, gathering: Gathering, now: float) -> list[Action]:
        """Move an attempt of which we are the leader forward."""
        if leader_of(self.chain, gathering.attempt) != self.core.me or not self.ready or self.bound(now):
            return []
        if gathering.attempt < self.first_attempt:
            return []
        if self.core.me not in gathering.joins:
            return self._follow(gathering, now)
        running = self.attempt is not None and self.attempt.group.attempt != gathering.attempt
        started = self.attempt is not None and self.attempt.exchange.inputs is not None
        if running or started:
            return []
        presence = self.core.presence
        expected = presence.trainers(now) | (self.chain.active_set() & gathering.joins.keys())
        return gathering.close(expected, self.minor_allowed(now), now)

    def _follow(self, gathering: Gathering, now: float) -> list[Action]:
        """Enough others joined an attempt of ours that we have not joined: our own clock is behind, theirs counts."""
        enough = min(quorum_size(self.core.pace, len(self.chain.active_set())), len(self.chain.active_set()) // 3 + 1)
        if self.attempt is not None or gathering.contributors() < enough or not self.wanted(now):
            return []
        self.attempt_number = gathering.attempt
        self.joining_since = now
        return self._join(now)

    def on_roster(self, statement: Statement, now: float) -> list[Action]:
        """A leader fixed a group with us in it."""
        known = [attempt.group.key.roster_id for attempt in self.attempts()]
        if not self.ready or statement.digest in known:
            return []
        group = read_group(statement, self.chain, self.core.unix_seconds(now))
        if group.boots.get(self.core.me) != self.core.boot:
            raise PeerError("a roster without us in this life")
        if not self._may_enter(group, now):
            return []
        lacking = self._lacking(group)
        if lacking:
            return [Send(group.leader, join) for join in lacking]
        return self._enter(group, now)

    def _may_enter(self, group: Group, now: float) -> bool:
        if group.minor and not self.minor_allowed(now + 0.1 * self.interval_seconds()):
            raise PeerError("a minor group before its time")
        current = self.attempt
        if current is None:
            return not self.bound(now) and all(one.group.attempt != group.attempt for one in self.past)
        revised = current.group.attempt == group.attempt and current.group.revision < group.revision
        return revised and current.exchange.inputs is None

    def _lacking(self, group: Group) -> list[Statement]:
        gathering = self.gatherings.get(group.attempt)
        if gathering is None or group.revision >= REVISIONS_MAX or group.leader == self.core.me:
            return []
        return gathering.lacking(group.voters)

    def _enter(self, group: Group, now: float) -> list[Action]:
        actions: list[Action] = []
        if self.attempt is not None:
            actions.append(Discard(self.attempt.group.key))  # an earlier revision of the same roster
        self.joining_since = None
        self.attempt_number = group.attempt
        timeline = Timeline(now, self.core.deadline_seconds(self.voids))
        self.attempt = Attempt(self.core, self.chain, group, timeline)
        return actions + self.attempt.start(now)

    # -- messages of a group

    def find(self, roster_id: bytes) -> Attempt | None:
        return next((one for one in self.attempts() if one.group.key.roster_id == roster_id), None)

    def _find_by_inputs(self, digest: bytes) -> Attempt | None:
        """The attempt with this input set, or the one that may still get it."""
        for attempt in self.attempts():
            inputs = attempt.exchange.inputs
            if inputs is not None and inputs.digest == digest:
                return attempt
        current = self.attempt
        return current if current is not None and current.exchange.inputs is None else None

    def receive(self, statement: Statement, root: bytes | None, now: float) -> list[Action]:
        """A statement about the version that we are at; raises PeerError if it is false or out of place."""
        kind, sender = statement.context.kind, PeerId(statement.sender)
        if kind == "join":
            return self.on_join(statement, now)
        if kind == "roster":
            return self.on_roster(statement, now)
        group = statement.context.group
        by_roster = kind in ("commit", "bundle", "vote", "abstain")
        attempt = self.find(group) if by_roster else self._find_by_inputs(group)
        if attempt is None:
            return []
        return attempt.receive(sender, statement, root, now)

    def on_part(self, sender: PeerId, note: PartNote, root: bytes | None, now: float) -> list[Action]:
        attempt = self.find(note.group)
        return [] if attempt is None else attempt.receive(sender, note, root, now)

    def on_need(self, sender: PeerId, note: NeedNote) -> list[Action]:
        attempt = self.find(note.group)
        return [] if attempt is None else attempt.answer(sender, note)

    # -- time

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now >= self.bound_until:
            self.bound_until = 0.0
        if self.joining_since is not None:
            actions += self._tick_joining(self.joining_since, now)
        for attempt in self.attempts():
            actions += attempt.tick(now) if now >= attempt.next_deadline() else []
        if self.attempt is not None and now >= self.attempt.timeline.end:
            actions += self._give_up(self.attempt, now)
        if self.fetch_again_at is not None and now >= self.fetch_again_at and not self.ready:
            actions += self.fetch(now)
        return actions

    def _tick_joining(self, since: float, now: float) -> list[Action]:
        if now >= since + JOIN_SHARE * self.core.deadline_seconds(self.voids):
            reason = self.gatherings[self.attempt_number].reason if self.attempt_number in self.gatherings else ""
            self.joining_since = None
            return self._void(f"no roster in time ({reason})", now)
        actions: list[Action] = []
        if now >= self.join_repeat_at:
            self.attempt_number = self._attempt_of_most()
            actions += self._join(now)
        gathering = self.gatherings.get(self.attempt_number)
        return actions + (self._lead(gathering, now) if gathering is not None else [])

    def _attempt_of_most(self) -> int:
        """The median of the attempts that we know peers to be in: whoever drifted apart meets there again."""
        numbers = sorted([*self.announced.values(), self.attempt_number])
        return max(numbers[(len(numbers) - 1) // 2], self.first_attempt)

    def _give_up(self, attempt: Attempt, now: float) -> list[Action]:
        actions = attempt.abstain()
        self.past = [attempt, *self.past]
        for old in self.past[PAST_ATTEMPTS_MAX:]:
            if old.locked(now):
                self.bound_until = max(self.bound_until, old.timeline.lock_end)
            actions.append(Discard(old.group.key))
        del self.past[PAST_ATTEMPTS_MAX:]
        self.attempt = None
        return actions + self._void("no certificate in time", now)

    def _void(self, reason: str, now: float) -> list[Action]:
        self.attempt_number += 1
        self.voids += 1
        self.not_before = now + VOID_BACKOFF_SHARE * self.core.pace.round_seconds
        self.announced[self.core.me] = self.attempt_number
        return [Tell("round_void", self.index, self.chain.version, {"reason": reason, "attempt": self.attempt_number})]

    def next_deadline(self, now: float) -> float | None:
        """When `tick` has something to do next; None if only messages can change anything."""
        times = [attempt.next_deadline() for attempt in self.attempts()]
        if self.attempt is not None:
            times.append(self.attempt.timeline.end)
        if self.joining_since is not None:
            times.append(self.joining_since + JOIN_SHARE * self.core.deadline_seconds(self.voids))
            times.append(self.join_repeat_at)
            gathering = self.gatherings.get(self.attempt_number)
            grace_end = None if gathering is None else gathering.due_at()
            if grace_end is not None and grace_end > now:
                times.append(grace_end)
        if self.fetch_again_at is not None and not self.ready:
            times.append(self.fetch_again_at)
        if self.bound_until:
            times.append(self.bound_until)
        return min(times, default=None)

    # -- versions

    def settle(self, now: float) -> list[Action]:
        """Move on if one of our groups has certified."""
        for attempt in self.attempts():
            certificate = attempt.certificate
            if certificate is not None:
                return self.advance(certificate, now)
        return []

    def advance(self, certificate: Certificate, now: float) -> list[Action]:
        """Accept the next version. The caller, or our own ballot, has verified it."""
        attempts, led = self.attempts(), self._led(certificate)
        adopt = next((action for one in attempts if (action := one.adoption(certificate)) is not None), None)
        self._observe(certificate, attempts, now)
        self.chain.append(certificate)
        details: dict[str, object] = {
            "group": len(certificate.outcome.included()),
            "roster": len(certificate.outcome.roster),
            "tokens": certificate.outcome.tokens,
            "minor": certificate.outcome.minor,
            "steps": max((one.steps for one in certificate.outcome.included()), default=0),
        }
        actions: list[Action] = [Tell("certified", self.index, self.chain.version, details)]
        kept: RoundKey | None = None
        if adopt is not None and adopt.applied is not None and self.held == certificate.version - 1:
            self.held = certificate.version
            actions.append(adopt)
        elif adopt is not None and adopt.snapshot is not None:
            self.unadopted, kept = adopt, adopt.snapshot  # our work is in a version whose state we must fetch
        actions += [Discard(one.group.key) for one in attempts if one.group.key != kept]
        self._reset(now)
        if not self.ready:
            actions += self.fetch(now)
        if led:
            outsiders = self.core.presence.live(now) - certificate.outcome.roster_ids
            actions.append(Publish(certificate))
            actions += [Send(peer, CertificateNote(certificate=certificate)) for peer in sorted(outsiders)]
        return actions

    def _led(self, certificate: Certificate) -> bool:
        return leader_of(self.chain, certificate.outcome.attempt) == self.core.me

    def _observe(self, certificate: Certificate, attempts: list[Attempt], now: float) -> None:
        """Learn from the round: where counting starts, and the estimates behind the grace window."""
        own = next((one for one in attempts if one.group.key.roster_id == certificate.outcome.roster_id), None)
        self.counted_from = now if own is None else own.timeline.start
        if not certificate.outcome.minor:
            self.certified_at = now
        gathering = self.gatherings.get(certificate.outcome.attempt)
        if own is None or gathering is None or gathering.first_at is None or gathering.quorum_at is None:
            return
        self.core.estimates = self.core.estimates.with_round(
            gathering.quorum_at - gathering.first_at, now - own.timeline.start
        )

    def _reset(self, now: float) -> None:
        self.attempt, self.past, self.joining_since = None, [], None
        self.gatherings, self.announced, self.joins_said = {}, {}, {}
        self.first_attempt, self.bound_until = self.left.get(self.chain.digest, (0, 0.0))
        self.attempt_number, self.voids, self.not_before = self.first_attempt, 0, 0.0

    def _leave(self, now: float) -> None:
        """Remember what binds us at this base, in case its branch wins after all."""
        used = [number for number in (*self.gatherings, self.attempt_number) if number >= self.first_attempt]
        locks = [one.timeline.lock_end for one in self.attempts() if one.locked(now)]
        self.left[self.chain.digest] = (max(used) + 1, max(locks, default=self.bound_until))
        while len(self.left) > BASES_LEFT_MAX:
            del self.left[next(iter(self.left))]

    def fetch(self, now: float) -> list[Action]:
        """Get the newest state from whoever signed it."""
        if not self.chain.certificates:
            return []
        newest = self.chain.certificates[-1]
        live = self.core.presence.live(now)
        holders = sorted(newest.voters - {self.core.me}, key=lambda peer: peer not in live)
        self.fetch_again_at = None
        return [FetchState(newest, tuple(holders))]

    def fetched(self, digest: bytes) -> list[Action]:
        """The state of the newest version has arrived: adopt it, unless newer ones exist by now."""
        if digest != self.chain.digest or self.ready or not self.chain.certificates:
            return []
        self.held = self.chain.version
        newest, included = self.chain.certificates[-1], self.unadopted
        self.unadopted = None
        if included is None:
            return [Adopt(newest, applied=None, snapshot=None)]
        assert included.snapshot is not None
        return [replace(included, certificate=newest), Discard(included.snapshot)]

    def fetch_failed(self, digest: bytes, now: float) -> None:
        if digest == self.chain.digest:
            self.fetch_again_at = now + FETCH_RETRY_SECONDS

    def switch(self, chain: Chain, now: float) -> list[Action]:
        """Leave our branch for a rival one (design §8): the chain is replaced, its state fetched."""
        actions: list[Action] = [Discard(one.group.key) for one in self.attempts()]
        self._leave(now)
        self.chain = chain
        self.held = -1
        self._reset(now)
        self.counted_from, self.certified_at = now, now
        return actions + self.fetch(now)
