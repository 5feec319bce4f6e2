"""One member's attempt at a round, from the accepted roster to a certificate or an abstention (design §6.2).

It adds `Leader` (the leader's part) and `Voting` (steps 8–9) to the joint reduction (steps 4–7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Action, Adopt, Included, IncludedUnseen, NotIncluded, OwnPart
from coordinator.core.events import Applied, VoteRecorded
from coordinator.core.lateness import LEADING
from coordinator.core.timeline import GONE_SHARE, QUIET_SHARE, RETRY_SHARE, SECOND_PROPOSE_SHARE
from coordinator.group.group import read_commit
from coordinator.round.joint_reduction import JointReduction
from coordinator.round.leader import Leader
from coordinator.round.outcome import read_check
from coordinator.round.vote_phases import VotePhase
from coordinator.round.voting import Voting
from dht.identity import PeerId
from dht.statement import Statement

NEEDS_INPUTS = frozenset({"result", "check", "redo", "proposal"})
KINDS_AFTER_ABSTAINING = frozenset({"result", "proposal", "vote", "abstain"})  # messages that still matter then


@dataclass(slots=True)
class Attempt(JointReduction):
    """A member's part in a group, in which all voters inspect the results and vote on them."""

    verdict: Voting = field(init=False)
    leader_role: Leader = field(init=False)
    retry_at: float = field(init=False)
    stage: tuple[bool, bool] = (False, False)  # whether we have an input set, and a proposal that we follow
    moment: float = math.inf  # when a stage ends for members that get only a brief wait
    deserted: bool = False  # others have gone on to another group, perhaps without ever seeing this roster

    def __post_init__(self) -> None:
        self.compose(NEEDS_INPUTS)
        presence = self.core.presence
        lost = (presence.gone | presence.unheard).intersection(self.group.members)
        self.gone = dict.fromkeys(lost, self.timeline.start)
        self.verdict = Voting(self.core, self.group, self.timeline, self.exchange, self.inspection)
        self.leader_role = Leader(self.core, self.group, self.timeline, self.exchange, self.refutations)
        self.retry_at = self.timeline.at(RETRY_SHARE)

    # -- the state of the attempt

    @property
    def certificate(self) -> Certificate | None:
        return self.verdict.ballot.certificate()

    @property
    def voted(self) -> bool:
        return self.verdict.voted

    @property
    def over(self) -> bool:
        """Whether we have abstained, so that we can no longer vote here."""
        return self.verdict.phase is VotePhase.ABSTAINED

    @property
    def silent(self) -> frozenset[PeerId]:
        """Voters that have said nothing here, although they knew of the group."""
        return frozenset() if self.deserted else self.group.voters - self.heard - {self.core.me}

    def locked(self, now: float) -> bool:
        """Whether our vote here may still make a certificate, so that we may enter no other attempt yet (step 9).

        On probation we wait as long for the outcome that we would have voted for: the voters are bound meanwhile and
        could lead no other attempt.
        """
        waits = self.voted or (self.core.me in self.group.probation and self.verdict.outcome is not None)
        return waits and now < self.timeline.lock_end and not self.verdict.ballot.hopeless()

    def pointless(self, now: float) -> bool:
        """Whether no certificate can come: too many abstained, or the leader was lost before the input set."""
        lost_at = self.gone.get(self.group.leader)
        stranded = lost_at is not None and now >= lost_at + GONE_SHARE * self.timeline.deadline_seconds
        return (stranded and self.exchange.inputs is None) or self.verdict.ballot.hopeless()

    def adoption(self, certificate: Certificate) -> Adopt | None:
        """Return how to adopt this certificate, with our part in it; None if it is not of this group."""
        if certificate.outcome.roster_id != self.group.key.roster_id:
            return None
        return Adopt(
            certificate,
            applied=self.group.key if self.verdict.holds(certificate) else None,
            ours=self._own_part(certificate),
            frozen=tuple(partition is None for partition in certificate.outcome.partitions),
        )

    def _own_part(self, certificate: Certificate) -> OwnPart:
        counted = certificate.outcome.included_in(self.core.me)
        is_cells = self.from_cell is not None  # then our own work, if any, is in the cell's input
        if is_cells or not any(counted):
            return NotIncluded()
        return IncludedUnseen() if self.exchange.commit is None else Included(self.group.key, counted)

    # -- events

    def start(self, now: float) -> list[Action]:
        if not self.exchange.suffices(self.group.contributors):
            return self.abstain()  # the leader has left out too many contributors for an input set
        return self.contribute() + self.settle(now)

    def accepts(self, kind: str) -> bool:
        """Whether a message of this kind matters: all until we abstain, then KINDS_AFTER_ABSTAINING only."""
        return not self.over or kind in KINDS_AFTER_ABSTAINING

    def hear(self, sender: PeerId, statement: Statement, now: float) -> list[Action]:
        """Take a member's statement other than a result; raises PeerError if it is false or out of place."""
        kind = statement.context.kind
        if kind == "commit":
            if self.leader_role.leads and sender not in self.leader_role.commits:
                read_commit(statement, self.group, self.core.codec, self.core.rules)
                self.leader_role.add_commit(statement)
            return []
        if kind == "bundle":
            actions = self.exchange.on_bundle(statement, self.gone.keys())
            return actions if self.exchange.inputs is not None else self.abstain()
        if kind == "check" and self.exchange.inputs is not None:
            self.leader_role.add_check(read_check(statement, self.group, self.exchange.inputs, self.core.verifier))
            return []
        if kind == "refutation":
            return self.refutations.hear(statement)
        if kind == "vote":
            self.verdict.ballot.add_vote(statement)
            return []
        if kind == "abstain":
            self.verdict.ballot.add_abstention(statement)
            return []
        return self.verdict.on_leader_statement(statement, self.gone.keys())

    def on_applied(self, event: Applied) -> list[Action]:
        return self.verdict.on_applied(event)

    def on_vote_recorded(self, event: VoteRecorded) -> list[Action]:
        return self.verdict.on_vote_recorded() if event.written else self.verdict.on_vote_not_written()

    # -- time

    def tick(self, now: float) -> list[Action]:
        actions = self.settle(now)
        if now >= self.retry_at:
            self.retry_at = now + RETRY_SHARE * self.timeline.deadline_seconds
            if self.retry_at >= self.timeline.lock_end:
                self.retry_at = math.inf  # this group binds nobody any more: no more reminders
            actions += self._remind()
        return actions

    def next_deadline(self) -> float:
        """Return when to tick next. Times of the timeline are met at this resolution, or sooner if messages come."""
        return min(self.retry_at, self.moment)

    def judge_members(self, void: bool) -> None:
        """Note, at the end of the group for us, the members that were silent and whether the leader led."""
        if self.exchange.inputs is not None:
            self.core.presence.miss(self.silent)
        self._judge_leader(void)

    def _judge_leader(self, void: bool) -> None:
        """Note whether the leader has led: if not, we skip its attempts for a while."""
        followed = self.verdict.followed
        if void or (followed is not None and followed.statement.sender != self.group.leader):
            self.core.lateness.miss([self.group.leader], LEADING)
        elif followed is not None:
            self.core.lateness.note_arrival(self.group.leader, LEADING)

    def give_up(self) -> list[Action]:
        """Give up the group, as it has made no certificate."""
        self.judge_members(void=True)
        self.early_messages.close()
        return self.abstain()

    def abstain(self) -> list[Action]:
        """Leave this group with an abstention, unless we have voted."""
        return self.verdict.abstain()

    def settle(self, now: float) -> list[Action]:
        """Do everything that has become possible."""
        actions = self._advance(now)
        self.moment = self.exchange.waits.next_moment(now)
        stage = (self.exchange.inputs is not None, self.verdict.followed is not None)
        if stage != self.stage:  # it changes for all members at once, and each would remind all others
            self.stage = stage
            self.retry_at = max(self.retry_at, now + QUIET_SHARE * self.timeline.deadline_seconds)
        return actions

    def _advance(self, now: float) -> list[Action]:
        if self.over:
            return self.verdict.judge()  # apply it all the same: if the others certify it, we hold the state already
        leaderless = self.group.leader in self.gone or now >= self.timeline.at(SECOND_PROPOSE_SHARE)
        proposers, progress = self.group.proposers(), self.exchange.progress
        actions = self.exchange.decide(now)
        actions += [] if self.voted else self.inspection.decide(self.gone.keys(), now)
        actions += self.verdict.decide(self.gone.keys(), proposers if leaderless else proposers[:1], now)
        if self.exchange.progress != progress:
            actions += self.early_messages.replay(self.receive, now)
        second = leaderless and self.core.me in proposers and self.verdict.open
        if self.leader_role.leads or second:
            actions += self.leader_role.decide(self.exchange.phase, self.gone.keys(), now)
        return actions

    def _remind(self) -> list[Action]:
        actions = self.verdict.remind()
        if self.verdict.followed is None and not self.over:
            actions += self.exchange.remind() + self.inspection.remind() + self.refutations.remind()
        return actions + (self.leader_role.remind() if self.leader_role.leads and not self.over else [])
