"""Steps 8–9 of a round as one member lives them: check, judge the proposal, vote or abstain (design §6.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.actions import Action, Adopt, Apply, PartitionResult, RecordVote, Send, VoteRecord
from coordinator.ballot import Ballot
from coordinator.certificate import Certificate, Outcome, Vote
from coordinator.core import Core
from coordinator.events import Applied
from coordinator.exchange import Exchange, HeldResult
from coordinator.group import Group, InputSet
from coordinator.messages import Abstain, Check, NeedNote, Proposal, Redo
from coordinator.outcome import (
    Checked,
    agreed_results,
    build_outcome,
    is_void,
    partitions_to_redo,
    read_check,
)
from coordinator.reducer import reduce_inputs
from coordinator.timeline import CHECK_SHARE, RECHECK_SHARE, Timeline
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(slots=True)
class Verdict:
    """What we have checked, accepted and signed. Votes at most once, and never after abstaining."""

    core: Core
    group: Group
    timeline: Timeline
    exchange: Exchange
    ballot: Ballot = field(init=False)
    check: Statement | None = None
    check_phase: int = -1
    checked_to: set[PeerId] = field(default_factory=set)
    proposal: Proposal | None = None
    proposed_checks: tuple[Checked, ...] = ()
    proposer: PeerId | None = None
    outcome: Outcome | None = None
    state: bytes | None = None
    vote: Vote | None = None
    vote_statement: Statement | None = None
    abstention: Statement | None = None

    def __post_init__(self) -> None:
        self.ballot = Ballot(self.group, self.core.verifier)

    # -- checking

    def decide(self, gone: frozenset[PeerId], check_to: tuple[PeerId, ...], now: float) -> list[Action]:
        """Send our check once it can be complete or time is up; judge a proposal that waited for bytes."""
        actions = self._judge()
        if self.exchange.inputs is None or self.vote is not None or self.abstention is not None:
            return actions
        phase = 1 if self.exchange.redone else 0
        if phase > self.check_phase and self._check_due(phase, gone, now):
            self.check = self._make_check(phase)
            self.check_phase = phase
            self.checked_to = set()
        if self.check is not None:
            for peer in check_to:
                if peer not in self.checked_to:
                    self.checked_to.add(peer)
                    actions.append(Send(peer, self.check))
        return actions

    def _check_due(self, phase: int, gone: frozenset[PeerId], now: float) -> bool:
        if now >= self.timeline.at(RECHECK_SHARE if phase else CHECK_SHARE):
            return True
        missing = [partition for partition, held in enumerate(self.exchange.held()) if held is None]
        return all(self.group.reducer(partition, phase) in gone for partition in missing)

    def _make_check(self, phase: int) -> Statement:
        assert self.exchange.inputs is not None
        held = self.exchange.held()
        results = tuple(None if one is None else one.statement.digest for one in held)
        complaints = tuple(partition for partition, one in enumerate(held) if one is None)
        member = self.exchange.inputs.index(self.core.me)
        nonce = self.exchange.nonces[phase] if member is not None and not complaints else None
        body = Check(phase=phase, results=results, complaints=complaints, nonce=nonce)
        return self.core.say("check", self.group.key, self.exchange.inputs.digest, body)

    # -- the leader's words

    def on_leader_statement(self, statement: Statement) -> list[Action]:
        """A redo or a proposal."""
        inputs = self.exchange.inputs
        if inputs is None or statement.context.group != inputs.digest:
            raise PeerError("a statement about another input set")
        sender = PeerId(statement.sender)
        if sender not in self.group.proposers() or not statement.verify(self.core.verifier):
            raise PeerError("a statement that is not the leader's")
        if statement.context.kind == "redo":
            return self._on_redo(statement.read(Redo), inputs, sender)
        if statement.context.kind == "proposal":
            return self._on_proposal(statement.read(Proposal), inputs, sender)
        raise PeerError(f"a {statement.context.kind} has no place here")

    def _read_checks(self, statements: tuple[Statement, ...], inputs: InputSet) -> tuple[Checked, ...]:
        checks = tuple(read_check(statement, self.group, inputs, self.core.verifier) for statement in statements)
        if len({checked.sender for checked in checks}) != len(checks):
            raise PeerError("two checks of one member")
        return checks

    def _on_redo(self, redo: Redo, inputs: InputSet, sender: PeerId) -> list[Action]:
        if self.exchange.redone or self.vote is not None:
            return []
        checks = self._read_checks(redo.checks, inputs)
        if sender != self.group.leader or set(redo.partitions) != set(partitions_to_redo(self.group, checks)):
            raise PeerError("a redo without the complaints that justify it")
        return self.exchange.on_redo(redo.partitions)

    def _on_proposal(self, proposal: Proposal, inputs: InputSet, sender: PeerId) -> list[Action]:
        if self.proposal is not None:
            return []
        checks = self._read_checks(proposal.checks, inputs)
        if not self.group.more_than_two_thirds(frozenset(checked.sender for checked in checks)):
            raise PeerError("a proposal that rests on too few checks")
        if len({checked.check.phase for checked in checks}) != 1:
            raise PeerError("a proposal that mixes checks before and after a redo")
        if proposal.results != agreed_results(self.group, checks) or is_void(proposal.results):
            raise PeerError("a proposal that does not follow from its checks")
        self.proposal, self.proposed_checks, self.proposer = proposal, checks, sender
        return self._judge()

    def _judge(self) -> list[Action]:
        """Apply the proposal on the side as soon as we hold every byte that it names."""
        if self.proposal is None or self.outcome is not None or self._missing():
            return []
        assert self.exchange.inputs is not None
        held = self.exchange.by_digest()
        results = {digest: (one.reducer, one.result) for digest, one in held.items()}
        self.outcome = build_outcome(self.group, self.exchange.inputs, self.proposed_checks, results)
        self.ballot.know(self.outcome)
        applied = tuple(None if one is None else _partition_result(held[one]) for one in self.proposal.results)
        return [Apply(self.group.key, applied, reduce_inputs(self.exchange.inputs))]

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
        if self.abstention is not None:
            return []
        self.vote = Vote(outcome=self.outcome.digest, state=event.state)
        key = self.group.key
        record = VoteRecord(
            key.fragment,
            key.version,
            self.group.parent,
            self.group.attempt,
            key.roster_id,
            self.group.members,
            self.outcome.digest,
            event.state,
        )
        return [RecordVote(record)]

    def on_vote_recorded(self) -> list[Action]:
        """The vote is on disk: send it to all members."""
        if self.vote is None or self.vote_statement is not None:
            return []
        self.vote_statement = self.core.say("vote", self.group.key, self.group.key.roster_id, self.vote)
        return list(self.core.to_all(self.group.members, self.vote_statement))

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

    # -- repeating

    def remind(self) -> list[Action]:
        """Repeat our last word, or ask for the bytes we cannot vote without; empty if it is the exchange's turn."""
        others = tuple(member for member in self.group.members if member != self.core.me)
        if self.vote_statement is not None:
            return list(self.core.to_all(others, self.vote_statement))
        if self.abstention is not None:
            return list(self.core.to_all(others, self.abstention))
        missing = self._missing()
        if missing and self.proposer is not None:
            turn = self.proposed_checks[0].check.phase
            return [
                Send(self.proposer, NeedNote(what="result", group=self.group.key.roster_id, partition=p, turn=t))
                for p in missing
                for t in range(turn + 1)
            ]
        if self.check is not None and self.proposal is None:
            return [Send(peer, self.check) for peer in sorted(self.checked_to)]
        return []


def _partition_result(held: HeldResult) -> PartitionResult:
    return PartitionResult(held.result.root, held.result.included, held.result.squared_norms)
