"""Votes and abstentions of one group, and the certificate that they make (design §6.2 step 9, §6.3)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate, Outcome, Vote
from coordinator.group.group import Group
from coordinator.wire.messages import Abstain
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(slots=True)
class Ballot:
    """The ballot of one group; it counts each voter once: its first vote, or its abstention."""

    group: Group
    votes: dict[PeerId, tuple[Vote, Statement]] = field(default_factory=dict)
    abstained: set[PeerId] = field(default_factory=set)
    outcomes: dict[bytes, Outcome] = field(default_factory=dict)
    _judged: tuple[int, int, int] = (0, 0, 0)  # votes, abstentions and outcomes counted for the two fields below
    _hopeless: bool = False
    _certificate: Certificate | None = None

    def know(self, outcome: Outcome) -> None:
        """Remember a proposed outcome: votes name it by digest only."""
        self.outcomes.setdefault(outcome.digest, outcome)

    def add_vote(self, statement: Statement) -> None:
        """Count a vote; raises PeerError if it does not belong here."""
        sender = self._sender(statement, self.group.voters)
        vote = statement.read(Vote)
        if sender in self.votes:
            return
        self.votes[sender] = (vote, statement)

    def add_abstention(self, statement: Statement) -> None:
        """Count an abstention, which any member may send; raises PeerError if it does not belong here."""
        sender = self._sender(statement, self.group.members)
        if sender in self.abstained:
            return
        if statement.read(Abstain).attempt != self.group.attempt:
            raise PeerError("an abstention from another attempt")
        self.abstained.add(sender)

    def _sender(self, statement: Statement, entitled: Collection[PeerId]) -> PeerId:
        sender, context, key = PeerId(statement.sender), statement.context, self.group.key
        if sender not in entitled or context.group != key.roster_id:
            raise PeerError("a ballot of another group")
        if (context.fragment, context.version) != (key.fragment, key.version):
            raise PeerError("a ballot for another version")
        return sender

    def hopeless(self) -> bool:
        """Return whether this group can make no certificate any more, whatever silent voters do.

        It takes voters at their word: an abstention rules out a vote, and a vote rules out another one. A key that
        signs two contradicting statements is convicted by them.
        """
        self._judge()
        return self._hopeless

    def certificate(self) -> Certificate | None:
        """Return the certificate once enough voters have signed one state and one outcome that we know, else None."""
        self._judge()
        return self._certificate

    def _judge(self) -> None:
        basis = (len(self.votes), len(self.abstained), len(self.outcomes))
        if basis != self._judged:
            self._judged, self._hopeless, self._certificate = basis, self._no_hope(), self._count()

    def _no_hope(self) -> bool:
        undecided = self.group.voters - self.abstained - self.votes.keys()
        camps = [frozenset(senders) for senders in self._tally().values()] or [frozenset()]
        return not any(self.group.certifies(camp | undecided) for camp in camps)

    def _count(self) -> Certificate | None:
        for (digest, state), senders in self._tally().items():
            outcome = self.outcomes.get(digest)
            if outcome is not None and self.group.certifies(frozenset(senders)):
                votes = tuple(self.votes[sender][1] for sender in sorted(senders))
                return Certificate(outcome=outcome, state=state, votes=votes, convictions=self.group.convictions)
        return None

    def _tally(self) -> dict[tuple[bytes, bytes], set[PeerId]]:
        """Return the voters by the outcome and state that they voted for."""
        tally: dict[tuple[bytes, bytes], set[PeerId]] = {}
        for sender, (vote, _) in self.votes.items():
            tally.setdefault((vote.outcome, vote.state), set()).add(sender)
        return tally
