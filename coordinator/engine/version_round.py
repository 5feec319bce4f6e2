"""Our rounds at one base: from asking into a group to its certificate, or to the next attempt (design §6.2).

`Joining` gets us into a group, `Attempt` is our part in it, and `VoteLocks` say when a vote forbids us another one.
A `VersionRound` lives as long as its base is the newest version here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.cells.cell_rounds import CellRounds
from coordinator.chain.certificate import Certificate, Conviction
from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Discard, RoundVoided, Send, Tell
from coordinator.core.context import Core
from coordinator.core.events import Encoded
from coordinator.core.lateness import LEADING
from coordinator.core.own_work import OwnWork
from coordinator.core.state_sync import StateSync
from coordinator.core.timeline import QUORUM_SHARE, Timeline
from coordinator.core.vote_locks import VoteLocks
from coordinator.group.eligibility import OwnSituation, eligibility
from coordinator.group.group import Group, read_group
from coordinator.group.joining import Joining
from coordinator.group.pacing import Tempo
from coordinator.group.roster_building import RosterBuilder
from coordinator.round.attempt import Attempt
from coordinator.wire.messages import Abstain, AskEvidenceNote, EvidenceNote
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

PAST_ATTEMPTS_MAX = 6
LEFT_OUT_ATTEMPTS = 2  # a peer silent in a void attempt may be left out of this many more (design §6.2 step 2)
MINOR_TOLERANCE_INTERVALS = 0.1  # honest members may differ this much on when a minor group is due


@dataclass(slots=True)
class VersionRound:
    """Our way from one version to the next. `attempt` is in the group that we are in; `past` attempts are void."""

    core: Core
    chain: Chain
    state_sync: StateSync
    vote_locks: VoteLocks
    own_work: OwnWork
    tempo: Tempo
    cells: CellRounds
    joining: Joining = field(init=False)
    attempt: Attempt | None = None
    past: list[Attempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.joining = Joining(self.core, self.chain, self.vote_locks.at(self.chain.digest).first_attempt)

    # -- our situation

    @property
    def busy(self) -> bool:
        """Whether a round of ours is in flight."""
        return self.attempt is not None or self.joining.since is not None

    def all(self) -> list[Attempt]:
        """Return the attempt that we are in, then past ones, newest first."""
        return [*([self.attempt] if self.attempt is not None else []), *self.past]

    def find(self, roster_id: bytes) -> Attempt | None:
        """Return our attempt with this roster, if any."""
        return next((one for one in self.all() if one.group.key.roster_id == roster_id), None)

    def _find_by_inputs(self, digest: bytes) -> Attempt | None:
        """Return the attempt with this input set, or the one that may still get it."""
        for attempt in self.all():
            inputs = attempt.exchange.inputs
            if inputs is not None and inputs.digest == digest:
                return attempt
        current = self.attempt
        return current if current is not None and current.exchange.inputs is None else None

    def bound(self, now: float) -> bool:
        """Whether a vote still forbids us to enter another attempt."""
        return now < self.vote_locks.at(self.chain.digest).until or any(one.locked(now) for one in self.all())

    def contributes(self, now: float) -> bool:
        """Whether we have an outer gradient: our cell's, or steps of ours that no version and no head's input holds."""
        if self.cells.cell_input is not None:
            return True
        return self.core.contributes and not self.cells.given and self.own_work.has_new_steps(self.core.steps_now(now))

    def situation(self, now: float, follows: bool = False) -> OwnSituation:
        """Return the facts that decide whether we may ask into a group; `follows` if others have opened it."""
        complete, bound = self.state_sync.complete, self.bound(now)
        return OwnSituation(self.core, self.chain, self.tempo, complete, self.busy, bound, follows)

    # -- into a group

    def open(self, now: float) -> list[Action]:
        """Take part in making the next version; the caller has checked that we may."""
        return self.joining.open(self.contributes(now), now)

    def _advance(self, gathering: RosterBuilder, now: float) -> list[Action]:
        """Ask into an attempt that others have opened, or issue or revise the roster of one that we lead."""
        situation, asked = self.situation(now, follows=True), self.core.me in gathering.joins
        if self.attempt is None and not asked and eligibility(situation, now)[0]:
            return self.joining.follow(gathering, self.contributes(now), now)
        mine = self.attempt  # a revision of its own roster may still replace it
        busy = mine is not None and (mine.group.attempt != gathering.attempt or mine.exchange.inputs is not None)
        leads = self.joining.leads(gathering.attempt) and not self._is_over(gathering.attempt)
        free = situation.complete and not situation.bound
        if not (asked and free and leads) or busy or self._awaits_cell(gathering, now):
            return []
        silent, minor = _silent(self, gathering.attempt), self.tempo.minor_allowed(self.chain, now)
        return self.joining.close(gathering, silent, minor, now)

    def _awaits_cell(self, gathering: RosterBuilder, now: float) -> bool:
        """Whether our own cell may still finish in time; for other heads' cells the leader has its grace window."""
        first_at = now if gathering.first_at is None else gathering.first_at
        return self.cells.busy and now < first_at + QUORUM_SHARE * self.core.pace.round_seconds

    def _is_over(self, attempt: int) -> bool:
        return attempt < self.joining.own.first_attempt or any(one.group.attempt == attempt for one in self.past)

    def _on_roster(self, statement: Statement, now: float) -> list[Action]:
        """Enter the group of a leader's roster, or answer why not; raises PeerError if the roster is not valid."""
        if not self.state_sync.complete or self.find(statement.digest) is not None:
            return []
        group = read_group(statement, self.chain, self.core.unix_seconds(now))
        if group.boots.get(self.core.me) != self.core.boot:
            raise PeerError("a roster without us in this life")
        if self.joining.own.is_behind(group):
            return []
        self.joining.check_limits(group)
        unproven = [one for one in group.convictions if one.peer not in self.core.bans]
        if unproven:  # the leader has the evidence or is wrong; it repeats the roster
            return [Send(group.leader, AskEvidenceNote(evidence=one.evidence)) for one in unproven]
        if banned := self.core.bans.among(group.members):
            return [*self._show(group, banned), *self._decline(group)]
        if refused := _refused(self.core, group, now):
            return [*refused, *self._decline(group)]
        if not self._may_enter(group, now):
            return self._decline(group)
        if lacking := self.joining.lacking(group, _silent(self, group.attempt)):
            return [Send(group.leader, join) for join in lacking]
        return self._enter(group, now)

    def _show(self, group: Group, convictions: tuple[Conviction, ...]) -> list[Action]:
        """Send a leader the evidence for which we refuse its roster."""
        bans = [self.core.bans.held[PeerId(one.peer)] for one in convictions]
        return [Send(group.leader, EvidenceNote(evidence=ban.evidence.to_wire())) for ban in bans]

    def shun(self, peer: PeerId) -> None:
        """Keep a banned peer out of our groups from now on."""
        self.joining.shun(peer)

    def _may_enter(self, group: Group, now: float) -> bool:
        if group.minor and not self.tempo.minor_allowed(self.chain, now, MINOR_TOLERANCE_INTERVALS):
            raise PeerError("a minor group before its time")
        if self._is_over(group.attempt):
            return False
        current = self.attempt
        if current is None:
            return not self.bound(now)
        revised = current.group.attempt == group.attempt and current.group.revision < group.revision
        return revised and current.exchange.inputs is None

    def _decline(self, group: Group) -> list[Action]:
        """Abstain in a group that we joined but do not enter, so that no member waits for our vote."""
        roster_id = group.key.roster_id
        self.joining.own.speak(group)
        statement = self.core.sign_statement("abstain", group.key, roster_id, Abstain(attempt=group.attempt))
        others = tuple(member for member in group.members if member != self.core.me)
        return list(self.core.to_all(others, statement))

    def _enter(self, group: Group, now: float) -> list[Action]:
        draft = self.attempt  # an earlier revision of the same roster
        actions: list[Action] = [] if draft is None else [Discard(draft.group.key)]
        self.joining.enter(group)
        seconds = self.joining.deadline_seconds(group)
        timeline = Timeline(now, seconds) if draft is None else draft.timeline.redrafted(now, seconds)
        self.attempt = Attempt(self.core, self.chain, group, timeline, self.cells.cell_input, _left_out(self, group))
        return actions + self.attempt.start(now)

    # -- statements of others and answers of our shell

    def receive(self, statement: Statement, root: bytes | None, now: float, shown_by: PeerId) -> list[Action]:
        """Take a statement about our newest version; raises PeerError if it is false or out of place."""
        kind, sender, group = statement.context.kind, PeerId(statement.sender), statement.context.group
        if kind == "join":
            gathering = self.joining.hear(statement, now, at_first_hand=shown_by == sender)
            return [] if gathering is None else self._advance(gathering, now)
        if kind == "roster":
            return self._on_roster(statement, now)
        by_roster = kind in ("commit", "bundle", "vote", "abstain")
        attempt = self.find(group) if by_roster else self._find_by_inputs(group)
        if attempt is not None and kind == "bundle":  # count again: the leader may have closed before all had asked
            attempt.exchange.left_out = _left_out(self, attempt.group)
        if attempt is not None and kind == "result" and shown_by == sender:
            attempt.exchange.waits.note_result_sender(sender, statement.digest)
        return [] if attempt is None else attempt.receive(sender, statement, root, now)

    def on_encoded(self, event: Encoded, now: float) -> list[Action]:
        """Take our encoded contribution."""
        attempt = self.find(event.key.roster_id)
        if attempt is None:
            return self.cells.on_encoded(event, now)
        own = attempt.from_cell is None  # else our own work went to the cell
        self.own_work.note_contribution(event.key.roster_id, self.core.steps_now(now) if own else 0)
        return attempt.on_encoded(event, now)

    def lose(self, peer: PeerId, now: float) -> list[Action]:
        """Stop waiting for a peer that the transport lost."""
        actions = [action for attempt in self.all() for action in attempt.lose(peer, now)]
        if self.joining.since is not None and self.joining.leader == peer:
            actions += self.joining.open(self.contributes(now), now)
        return actions

    # -- time

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        actions = self._tick_joining(now)
        for attempt in self.all():
            actions += attempt.tick(now) if now >= attempt.next_deadline() else []
        if self.attempt is not None and now >= self.attempt.timeline.end:
            actions += self._give_up(self.attempt, "no certificate in time", now)
        return actions

    def _tick_joining(self, now: float) -> list[Action]:
        joining, gives_up_at = self.joining, self.joining.gives_up_at()
        if gives_up_at is None:
            return []
        if now >= gives_up_at:
            self.core.lateness.miss([joining.leader], LEADING)
            reason = joining.current.reason if joining.current is not None else "nobody asks"
            return self._void(f"no roster in time ({reason})", now)
        contributes = self.contributes(now)
        again = now >= joining.repeat_at or joining.asked_too_early(contributes)
        actions = joining.meet(contributes, now) if again else []
        return actions + (self._advance(joining.current, now) if joining.current is not None else [])

    def leave_pointless(self, now: float) -> list[Action]:
        """Leave the attempt that we are in if it can make no certificate."""
        attempt = self.attempt
        if attempt is None:
            return []
        attempt.deserted = _deserted(attempt, self.joining)
        if not (attempt.deserted or attempt.pointless(now)):
            return []
        return self._give_up(attempt, "nothing can come of it", now)

    def _give_up(self, attempt: Attempt, reason: str, now: float) -> list[Action]:
        actions = attempt.give_up()
        self.attempt, self.past = None, [attempt, *self.past]
        for old in self.past[PAST_ATTEMPTS_MAX:]:
            self.joining.use_up(old.group.attempt)
            self.vote_locks.extend(self.chain.digest, 0, old.timeline.lock_end if old.locked(now) else 0.0)
            actions.append(Discard(old.group.key))
        del self.past[PAST_ATTEMPTS_MAX:]
        return actions + self._void(reason, now)

    def _void(self, reason: str, now: float) -> list[Action]:
        self.joining.void(now)
        base, attempt = (self.chain.fragment, self.chain.version), self.joining.attempt_number
        return [RoundVoided(*base, reason), Tell("round_void", *base, {"reason": reason, "attempt": attempt})]

    def next_deadline(self, now: float) -> list[float]:
        """Return the times at which `tick` has something to do, or a vote stops binding us."""
        times = [] if self.joining.since is None else self.joining.deadlines(now)
        times += [attempt.next_deadline() for attempt in self.all()]
        times += [] if self.attempt is None else [self.attempt.timeline.end]
        free_at = self.vote_locks.at(self.chain.digest).until
        return [*times, free_at] if free_at > now else times

    # -- the end

    def shall_hold(self, certificate: Certificate, now: float) -> bool:
        """Whether we are just applying this very version: waiting a moment saves fetching its state."""
        own = self.find(certificate.outcome.roster_id)
        return own is not None and own.verdict.applying(certificate) and now < own.timeline.end

    def leave(self, now: float) -> None:
        """Remember our vote locks at this base, in case it becomes ours again."""
        if self.attempt is not None:
            self.attempt.judge_members(void=False)
        locks = [one.timeline.lock_end for one in self.all() if one.locked(now)]
        self.vote_locks.extend(self.chain.digest, self.joining.own.used(), max(locks, default=0.0))


def bound_until(rounds: VersionRound) -> float:
    """Return when the last lock by a vote of ours at this base ends or ended; 0 without a vote."""
    locks = [one.timeline.lock_end for one in rounds.all() if one.voted]
    return max(rounds.vote_locks.at(rounds.chain.digest).until, *locks, 0.0)


def _refused(core: Core, group: Group, now: float) -> list[Send]:
    """Return the orders that bar members of a leader's roster, to send to the leader, as it may not know them."""
    door, brings, unix_seconds = core.admission, group.contributors, core.unix_seconds(now)
    passes = group.passes.items()
    refused = [peer for peer, shown in passes if door.seat_refusal(peer, shown, peer in brings, unix_seconds)]
    given = {key: core.bans.order_about(key) for peer in refused for key in door.grounds(peer)}
    shown = [EvidenceNote(evidence=ban.evidence.to_wire()) for ban in given.values() if ban is not None]
    return [Send(group.leader, one) for one in shown]


def _left_out(rounds: VersionRound, group: Group) -> int:
    """Return how many peers asked in vain for a seat in this group, as far as we know by now."""
    gathering = rounds.joining.gatherings.get(group.attempt)
    return 0 if gathering is None else gathering.left_out(group, _silent(rounds, group.attempt))


def _silent(rounds: VersionRound, attempt: int) -> frozenset[PeerId]:
    """Return the members that were silent in the void attempts just before this one."""
    recent = [one for one in rounds.past if 0 < attempt - one.group.attempt <= LEFT_OUT_ATTEMPTS]
    return frozenset[PeerId]().union(*(one.silent for one in recent))


def _deserted(attempt: Attempt, joining: Joining) -> bool:
    """Whether too many members ask for later attempts, perhaps because the leader showed them no roster.

    If we waited for an input set meanwhile, we would be missing from the next group (docs/adr/0046).
    """
    ahead = {peer for peer, number in joining.announced.items() if number > attempt.group.attempt}
    return attempt.exchange.inputs is None and not attempt.group.more_than_two_thirds(attempt.group.voters - ahead)
