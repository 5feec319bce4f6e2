"""Steps 8–9 of a round for one member: check, judge the proposal, vote or abstain (design §6.2)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import InitVar, dataclass, field, replace

from coordinator.chain.certificate import Certificate, Outcome, Vote
from coordinator.core.actions import Action, Apply, PartitionResult, RecordVote, Send, VoteRecord
from coordinator.core.context import Core
from coordinator.core.events import Applied
from coordinator.core.timeline import Timeline
from coordinator.group.group import Group, InputSet
from coordinator.round.ballot import Ballot
from coordinator.round.exchange import Exchange, HeldResult
from coordinator.round.outcome import (
    Checked,
    agreed_results,
    build_outcome,
    follows,
    partitions_to_redo,
    read_checks,
    read_proposal,
)
from coordinator.round.own_check import OwnCheck
from coordinator.round.spot_checks import SpotChecks
from coordinator.round.vote_phases import TRANSITIONS, VotePhase, VoteStep
from coordinator.wire.messages import Abstain, NeedNote, Proposal, Redo
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

SHOWN_MAX = 3  # how often we pass on roster and bundle with a proposal: messages get lost, but bundles are large


@dataclass(frozen=True, slots=True)
class Followed:
    """A proposal that follows from its checks, and our progress with it."""

    proposal: Proposal
    statement: Statement  # as its proposer signed it
    checks: tuple[Checked, ...]
    outcome: Outcome | None = None  # set once we hold every byte that it names and begin to apply it
    state: bytes | None = None  # digest of the applied state, once known


@dataclass(slots=True)
class Voting:
    """Our check, the proposal that we follow, and the `phase` of our vote; `said` is the vote or abstention we sent."""

    core: Core
    group: Group
    timeline: InitVar[Timeline]
    exchange: Exchange
    inspection: SpotChecks
    ballot: Ballot = field(init=False)
    check: OwnCheck = field(init=False)
    waiting: dict[str, Statement] = field(default_factory=dict)  # redo or proposal that we cannot follow yet, by kind
    waited_with: tuple[int, int] = (0, 0)  # refutations and results known when we last tried these
    followed: Followed | None = None
    phase: VotePhase = VotePhase.SILENT
    said: Statement | None = None
    reminded: int = 0  # how often we have passed on the proposal and asked for missing bytes

    def __post_init__(self, timeline: Timeline) -> None:
        self.ballot = Ballot(self.group)
        self.check = OwnCheck(self.core, self.group, timeline, self.exchange, self.inspection)

    def _step(self, step: VoteStep) -> bool:
        """Go on to the next phase; return False if the table has no such transition."""
        after = TRANSITIONS.get((self.phase, step))
        self.phase = after or self.phase
        return after is not None

    @property
    def voted(self) -> bool:
        """Whether we have voted, even if the vote has not been sent yet."""
        return self.phase in (VotePhase.WRITING, VotePhase.VOTED)

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the proposal that we follow, if we have all its bytes."""
        return None if self.followed is None else self.followed.outcome

    @property
    def _votes(self) -> bool:
        """Whether we have a vote here. Without one we check nothing, but still apply the proposal."""
        return self.core.me in self.group.voters

    # -- checking

    def decide(self, gone: Set[PeerId], check_to: tuple[PeerId, ...], now: float) -> list[Action]:
        """Send our check once it is due; judge a proposal that waited for bytes."""
        actions, inputs = self._try_waiting(gone) + self.judge() + self._vote(), self.exchange.inputs
        if inputs is None or not self._votes or self.phase is not VotePhase.SILENT:
            return actions
        return actions + self.check.decide(inputs, gone, check_to, now)

    def _try_waiting(self, gone: Set[PeerId]) -> list[Action]:
        """Try again to follow a waiting redo or proposal, if we know more refutations or results than before."""
        known = (len(self._refuted), len(self.exchange.results))
        if not self.waiting or known == self.waited_with:
            return []
        self.waited_with = known
        return [action for held in self.waiting.copy().values() for action in self.on_leader_statement(held, gone)]

    # -- the leader's statements

    def on_leader_statement(self, statement: Statement, gone: Set[PeerId]) -> list[Action]:
        """Take a redo or a proposal; raises PeerError if it is false or out of place."""
        inputs = self.exchange.inputs
        if inputs is None or statement.context.group != inputs.digest:
            raise PeerError("a statement about another input set")
        if statement.sender not in self.group.proposers():
            raise PeerError("a statement that is not the leader's")
        if statement.context.kind == "redo":
            return self._on_redo(statement, inputs, gone)
        if statement.context.kind == "proposal":
            return self._on_proposal(statement, inputs)
        raise PeerError(f"a {statement.context.kind} has no place here")

    @property
    def _refuted(self) -> Set[bytes]:
        """Digests of the results that we know to be false."""
        return self.inspection.refutations.proven.keys()

    def _on_redo(self, statement: Statement, inputs: InputSet, gone: Set[PeerId]) -> list[Action]:
        if self.exchange.redone or self.voted:
            return []
        redo = statement.read(Redo)
        checks = read_checks(redo.checks, self.group, inputs, self.core.verifier)
        if statement.sender != self.group.leader or max(redo.partitions) >= self.group.partitions:
            raise PeerError("a redo that is not the leader's, or of nothing here")
        justified = partitions_to_redo(self.group, inputs, checks, self.exchange.known_results())
        if not set(redo.partitions) <= justified | self.inspection.refutations.partitions:
            self.waiting["redo"] = statement  # until we know the refutation or result that justifies it
            return []
        self.waiting.pop("redo", None)
        return self.exchange.on_redo(redo.partitions, gone)

    def _on_proposal(self, statement: Statement, inputs: InputSet) -> list[Action]:
        if not self.open:
            return []
        proposal, checks = read_proposal(statement, self.group, inputs, self.core.verifier)
        if not follows(proposal.results, agreed_results(self.group, checks), self._refuted):
            self.waiting["proposal"] = statement
            return []
        self.waiting.pop("proposal", None)
        self.followed = Followed(proposal, statement, checks)
        self.exchange.named = frozenset(digest for digest in proposal.results if digest is not None)
        return self.judge()

    @property
    def open(self) -> bool:
        """Whether we may follow a proposal: there is none yet, or only a false one that we have not begun to apply."""
        followed = self.followed
        return followed is None or (followed.outcome is None and self._is_false(followed))

    def _is_false(self, followed: Followed) -> bool:
        """Whether the proposal holds a refuted result, so that we do not vote for it."""
        return not self._refuted.isdisjoint(followed.proposal.results)

    def judge(self) -> list[Action]:
        """Apply the proposal on the side as soon as we hold every byte that it names."""
        followed, inputs = self.followed, self.exchange.inputs
        if followed is None or followed.outcome is not None or self._missing(followed) or self._is_false(followed):
            return []
        assert inputs is not None
        held = self.exchange.by_digest()
        results = {digest: (one.reducer, one.result) for digest, one in held.items()}
        outcome = build_outcome(self.group, inputs, followed.checks, followed.proposal.results, results)
        self.followed = replace(followed, outcome=outcome)
        self.ballot.know(outcome)
        applied = tuple(None if one is None else _partition_result(held[one]) for one in followed.proposal.results)
        return [Apply(self.group.key, applied, inputs.whole(), inputs.members)]

    def _missing(self, followed: Followed) -> list[int]:
        held = self.exchange.by_digest()
        return [p for p, one in enumerate(followed.proposal.results) if one is not None and one not in held]

    # -- voting

    def on_applied(self, event: Applied) -> list[Action]:
        """Take the digest of the applied state, and have our vote written to disk."""
        if self.followed is None or self.followed.outcome is None or self.followed.state is not None:
            return []
        self.followed = replace(self.followed, state=event.state)
        return self._vote()

    def _vote(self) -> list[Action]:
        """Have our vote written to disk, unless the proposal holds a false result or one that we may not vouch for."""
        followed = self.followed
        if followed is None or followed.state is None or self.phase is not VotePhase.SILENT or not self._votes:
            return []
        held = self.exchange.by_digest()
        named = [held[one] for one in followed.proposal.results if one is not None]
        if self._is_false(followed) or any(self._is_strange(one, followed) for one in named):
            return []
        self._step(VoteStep.VOTE)
        key, vote = self.group.key, _vote_for(followed)
        record = VoteRecord(
            key.fragment,
            key.version,
            self.group.parent,
            self.group.attempt,
            key.roster_id,
            self.group.members,
            vote.outcome,
            vote.state,
        )
        return [RecordVote(record)]

    def _is_strange(self, held: HeldResult, followed: Followed) -> bool:
        """Whether we neither know this result to be true nor may rely on the votes of others.

        If more than a third have voted, one of them is honest, and the first honest voter knew all results to be true
        (docs/adr/0054). While we may still find out ourselves, we rely on nobody, unless our check doubts the result.
        """
        convinced = self.inspection.convinced(held)
        if convinced:
            return False
        ours = _vote_for(followed).outcome
        doubters = {one.sender for one in followed.checks if held.result.partition in one.check.doubts}
        voters = frozenset(peer for peer, (vote, _) in self.ballot.votes.items() if vote.outcome == ours)
        looks_on = convinced is None and self.core.me not in doubters
        return looks_on or not self.group.more_than_a_third(voters)

    def on_vote_recorded(self) -> list[Action]:
        """Send our vote, now on disk, to all members."""
        if self.followed is None or not self._step(VoteStep.WRITTEN):
            return []
        return self._say("vote", _vote_for(self.followed))

    def on_vote_not_written(self) -> list[Action]:
        """Abstain, as our vote could not be written to disk and was not sent, so that no member waits for it."""
        return self.abstain() if self._step(VoteStep.NOT_WRITTEN) else []

    def abstain(self) -> list[Action]:
        """Leave this group with an abstention, unless we have voted."""
        return self._say("abstain", Abstain(attempt=self.group.attempt)) if self._step(VoteStep.ABSTAIN) else []

    def _say(self, kind: str, body: Vote | Abstain) -> list[Action]:
        self.said = self.core.sign_statement(kind, self.group.key, self.group.key.roster_id, body)
        return list(self.core.to_all(self.group.members, self.said))

    def holds(self, certificate: Certificate) -> bool:
        """Whether our applied state is the one that this certificate names."""
        return self._follows(certificate) and self.followed is not None and certificate.state == self.followed.state

    def applying(self, certificate: Certificate) -> bool:
        """Whether we are still applying the outcome of this certificate."""
        return self._follows(certificate) and self.followed is not None and self.followed.state is None

    def _follows(self, certificate: Certificate) -> bool:
        return self.outcome is not None and certificate.outcome.digest == self.outcome.digest

    # -- repeating

    def remind(self) -> list[Action]:
        """Repeat our vote or abstention, pass on the proposal, and ask for the bytes that we need to vote."""
        others = tuple(member for member in self.group.members if member != self.core.me)
        actions: list[Action] = [] if self.said is None else list(self.core.to_all(others, self.said))
        if self.phase is VotePhase.ABSTAINED:
            return actions
        if self.followed is None:
            return self.check.repeat()
        self.reminded += 1
        return actions + self._hand_on(self.followed.statement, others) + self._ask_for_missing(self.followed)

    def _hand_on(self, proposed: Statement, others: tuple[PeerId, ...]) -> list[Action]:
        """Send the proposal to members that may lack it; the first SHOWN_MAX times with roster and bundle."""
        silent = tuple(peer for peer in others if peer not in self.ballot.votes and peer not in self.ballot.abstained)
        inputs = self.exchange.inputs
        first = (self.group.statement, inputs.statement) if inputs is not None and self.reminded <= SHOWN_MAX else ()
        return [action for one in (*first, proposed) for action in self.core.to_all(silent, one)]

    def _ask_for_missing(self, followed: Followed) -> list[Action]:
        """Ask the proposer, and a different voter each time, for the results that the proposal names."""
        proposer = PeerId(followed.statement.sender)
        voters = [
            peer for peer in _behind(self.core.me, self.group.members) if peer in self.ballot.votes.keys() - {proposer}
        ]
        holders = {proposer, *voters[self.reminded % max(len(voters), 1) :][:1]} - {self.core.me}
        turns, group, missing = (
            range(followed.checks[0].check.phase + 1),
            self.group.key.roster_id,
            self._missing(followed),
        )
        notes = [NeedNote(what="result", group=group, partition=one, turn=turn) for one in missing for turn in turns]
        return [Send(holder, note) for holder in sorted(holders) for note in notes]


def _behind(peer: PeerId, members: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    """Return the others in roster order, beginning after this peer: the peer whose key sorts first may be hostile."""
    place = members.index(peer)
    return members[place + 1 :] + members[:place]


def _vote_for(followed: Followed) -> Vote:
    assert followed.outcome is not None
    assert followed.state is not None
    return Vote(outcome=followed.outcome.digest, state=followed.state)


def _partition_result(held: HeldResult) -> PartitionResult:
    return PartitionResult(held.result.root, held.result.included)
