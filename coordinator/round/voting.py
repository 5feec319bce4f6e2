"""Steps 8–9 of a round as one member lives them: check, judge the proposal, vote or abstain (design §6.2)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

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
from coordinator.wire.messages import Abstain, NeedNote, Proposal, Redo
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

SHOWN_MAX = 3  # times that roster and bundle are handed on with a proposal: messages get lost, but bundles are large


@dataclass(slots=True)
class Voting:
    """What we have checked, accepted and signed. Votes at most once, and never after abstaining."""

    core: Core
    group: Group
    timeline: Timeline
    exchange: Exchange
    inspection: SpotChecks
    ballot: Ballot = field(init=False)
    check: OwnCheck = field(init=False)
    waiting: dict[str, Statement] = field(default_factory=dict)  # a redo or proposal whose refutations we lack yet
    waited_with: tuple[int, int] = (0, 0)  # how much we knew when we last looked at these
    proposal: Proposal | None = None
    proposed: Statement | None = None  # the proposal as its proposer signed it
    proposed_checks: tuple[Checked, ...] = ()
    outcome: Outcome | None = None
    state: bytes | None = None
    vote: Vote | None = None
    vote_statement: Statement | None = None
    abstention: Statement | None = None
    reminded: int = 0  # times that we have handed the proposal on, and asked for what we lack

    def __post_init__(self) -> None:
        self.ballot = Ballot(self.group)
        self.check = OwnCheck(self.core, self.group, self.timeline, self.exchange, self.inspection)

    @property
    def _votes(self) -> bool:
        """Whether we have a vote here. Without one we check nothing and hold the state when it is certified."""
        return self.core.me in self.group.voters

    # -- checking

    def decide(self, gone: Set[PeerId], check_to: tuple[PeerId, ...], now: float) -> list[Action]:
        """Send our check once it is due; judge a proposal that waited for bytes."""
        actions, inputs = self._try_waiting(gone) + self.judge() + self._vote(), self.exchange.inputs
        if inputs is None or not self._votes or self.vote is not None or self.abstention is not None:
            return actions
        return actions + self.check.decide(inputs, gone, check_to, now)

    def _try_waiting(self, gone: Set[PeerId]) -> list[Action]:
        """A redo or proposal that we could not follow, once we know more."""
        known = (len(self._refuted), len(self.exchange.results))
        if not self.waiting or known == self.waited_with:
            return []
        self.waited_with = known
        return [action for held in self.waiting.copy().values() for action in self.on_leader_statement(held, gone)]

    # -- the leader's words

    def on_leader_statement(self, statement: Statement, gone: Set[PeerId]) -> list[Action]:
        """A redo or a proposal."""
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
        """Results that we know to be false."""
        return self.inspection.refutations.proven.keys()

    def _on_redo(self, statement: Statement, inputs: InputSet, gone: Set[PeerId]) -> list[Action]:
        if self.exchange.redone or self.vote is not None:
            return []
        redo = statement.read(Redo)
        checks = read_checks(redo.checks, self.group, inputs, self.core.verifier)
        if statement.sender != self.group.leader or max(redo.partitions) >= self.group.partitions:
            raise PeerError("a redo that is not the leader's, or of nothing here")
        justified = partitions_to_redo(self.group, inputs, checks, self.exchange.known_results())
        if not set(redo.partitions) <= justified | self.inspection.refutations.partitions:
            self.waiting["redo"] = statement  # for the refutation, or the result, that justifies it
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
        self.proposal, self.proposed, self.proposed_checks = proposal, statement, checks
        self.exchange.named = frozenset(digest for digest in proposal.results if digest is not None)
        return self.judge()

    @property
    def open(self) -> bool:
        """Whether there is no proposal yet, or only one that we refused before doing anything about it."""
        return self.proposal is None or (self._is_false() and self.outcome is None)

    def _is_false(self) -> bool:
        """Whether the proposal holds a result that has been refuted: then it does not get our vote."""
        return self.proposal is not None and not self._refuted.isdisjoint(self.proposal.results)

    def judge(self) -> list[Action]:
        """Apply the proposal on the side as soon as we hold every byte that it names."""
        if self.proposal is None or self.outcome is not None or self._missing() or self._is_false():
            return []
        assert self.exchange.inputs is not None
        held = self.exchange.by_digest()
        results = {digest: (one.reducer, one.result) for digest, one in held.items()}
        self.outcome = build_outcome(
            self.group, self.exchange.inputs, self.proposed_checks, self.proposal.results, results
        )
        self.ballot.know(self.outcome)
        applied = tuple(None if one is None else _partition_result(held[one]) for one in self.proposal.results)
        inputs = self.exchange.inputs
        return [Apply(self.group.key, applied, inputs.whole(), inputs.members)]

    def _missing(self) -> list[int]:
        if self.proposal is None:
            return []
        held = self.exchange.by_digest()
        return [p for p, one in enumerate(self.proposal.results) if one is not None and one not in held]

    # -- voting

    def on_applied(self, event: Applied) -> list[Action]:
        """We know the state that the proposal leads to: have the vote written down."""
        if self.outcome is None or self.state is not None:
            return []
        self.state = event.state
        return self._vote()

    def _vote(self) -> list[Action]:
        """Have our vote written down, unless the proposal holds what nobody honest may know to be true."""
        if self.outcome is None or self.state is None or self.vote is not None or self.abstention is not None:
            return []
        if not self._votes:
            return []
        assert self.proposal is not None
        held = self.exchange.by_digest()
        named = [held[one] for one in self.proposal.results if one is not None]
        if self._is_false() or any(self._is_strange(one) for one in named):
            return []
        self.vote = Vote(outcome=self.outcome.digest, state=self.state)
        key = self.group.key
        record = VoteRecord(
            key.fragment,
            key.version,
            self.group.parent,
            self.group.attempt,
            key.roster_id,
            self.group.members,
            self.vote.outcome,
            self.vote.state,
        )
        return [RecordVote(record)]

    def _is_strange(self, held: HeldResult) -> bool:
        """Whether we do not know this result to be true, nor could follow who does.

        More than a third have voted, and so somebody honest: the first of these knew all results to be true
        (docs/adr/0054). Who may still find out follows nobody, unless it has told all that it doubts this one.
        """
        assert self.outcome is not None
        convinced = self.inspection.convinced(held)
        if convinced:
            return False
        doubters = {one.sender for one in self.proposed_checks if held.result.partition in one.check.doubts}
        voters = frozenset(peer for peer, (vote, _) in self.ballot.votes.items() if vote.outcome == self.outcome.digest)
        looks_on = convinced is None and self.core.me not in doubters
        return looks_on or not self.group.more_than_a_third(voters)

    def on_vote_recorded(self) -> list[Action]:
        """The vote is on disk: send it to all members."""
        if self.vote is None or self.vote_statement is not None:
            return []
        self.vote_statement = self.core.say("vote", self.group.key, self.group.key.roster_id, self.vote)
        return list(self.core.to_all(self.group.members, self.vote_statement))

    def on_vote_not_written(self) -> list[Action]:
        """The disk does not take our vote, and nobody has heard it: say that none will come, so that nobody waits."""
        if self.vote_statement is not None:
            return []
        self.vote = None
        return self.abstain()

    def abstain(self) -> list[Action]:
        if self.vote is not None or self.abstention is not None:
            return []
        body = Abstain(attempt=self.group.attempt)
        self.abstention = self.core.say("abstain", self.group.key, self.group.key.roster_id, body)
        return list(self.core.to_all(self.group.members, self.abstention))

    def holds(self, certificate: Certificate) -> bool:
        """Whether the state that we applied on the side is the one that this certificate names."""
        return (
            self.outcome is not None
            and certificate.outcome.digest == self.outcome.digest
            and certificate.state == self.state
        )

    def applying(self, certificate: Certificate) -> bool:
        """Whether we shall know shortly if we hold the state of this certificate."""
        return self.outcome is not None and certificate.outcome.digest == self.outcome.digest and self.state is None

    # -- repeating

    def remind(self) -> list[Action]:
        """Repeat our last word, hand on the proposal, ask for the bytes that we cannot vote without."""
        others = tuple(member for member in self.group.members if member != self.core.me)
        last_word = self.vote_statement or self.abstention
        actions: list[Action] = list(self.core.to_all(others, last_word)) if last_word is not None else []
        if self.abstention is not None:
            return actions
        if self.proposed is None:
            return self.check.repeat()
        self.reminded += 1
        return actions + self._hand_on(self.proposed, others) + self._ask_for_missing(PeerId(self.proposed.sender))

    def _hand_on(self, proposed: Statement, others: tuple[PeerId, ...]) -> list[Action]:
        """The proposal, and a few times what has to be known before it, to whoever may never have been shown them."""
        silent = tuple(peer for peer in others if peer not in self.ballot.votes and peer not in self.ballot.abstained)
        inputs = self.exchange.inputs
        first = (self.group.statement, inputs.statement) if inputs is not None and self.reminded <= SHOWN_MAX else ()
        return [action for one in (*first, proposed) for action in self.core.to_all(silent, one)]

    def _ask_for_missing(self, proposer: PeerId) -> list[Action]:
        """Results that the proposal names, from the proposer and from another one each time who has voted for them."""
        voters = [
            peer for peer in _behind(self.core.me, self.group.members) if peer in self.ballot.votes.keys() - {proposer}
        ]
        holders = {proposer, *voters[self.reminded % max(len(voters), 1) :][:1]} - {self.core.me}
        turns, group = range(self.proposed_checks[0].check.phase + 1), self.group.key.roster_id
        notes = [
            NeedNote(what="result", group=group, partition=one, turn=turn) for one in self._missing() for turn in turns
        ]
        return [Send(holder, note) for holder in sorted(holders) for note in notes]


def _behind(peer: PeerId, members: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    """The others in the order of the roster, beginning behind this one: whose key sorts first may be hostile."""
    place = members.index(peer)
    return members[place + 1 :] + members[:place]


def _partition_result(held: HeldResult) -> PartitionResult:
    return PartitionResult(held.result.root, held.result.included)
