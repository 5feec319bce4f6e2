"""Votes and abstentions of one group, and the certificate they add up to (design §6.2 step 9, §6.3)."""

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
    """Counts each voter once: its first vote, or its abstention."""

    group: Group
    votes: dict[PeerId, tuple[Vote, Statement]] = field(default_factory=dict)
    abstained: set[PeerId] = field(default_factory=set)
    outcomes: dict[bytes, Outcome] = field(default_factory=dict)
    _judged: tuple[int, int, int] = (0, 0, 0)  # how many votes, abstentions and outcomes what follows is based on
    _hopeless: bool = False
    _certificate: Certificate | None = None

    def know(self, outcome: Outcome) -> None:
        """An outcome that was proposed; votes name it by digest only."""
        self.outcomes.setdefault(outcome.digest, outcome)

    def add_vote(self, statement: Statement) -> None:
        """Count a vote; raises PeerError if it does not belong here."""
        sender = self._sender(statement, self.group.voters)
        vote = statement.read(Vote)
        if sender in self.votes:
            return
        self.votes[sender] = (vote, statement)

    def add_abstention(self, statement: Statement) -> None:
        """Count an abstention, which any member may say; raises PeerError if it does not belong here."""
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
        """True once no certificate can come of this group any more, whatever silent voters do.

        Voters are taken at their word: an abstention rules out a vote and a vote rules out another one, or else a
        key has signed two statements that contradict each other and is convicted by them.
        """
        self._judge()
        return self._hopeless

    def certificate(self) -> Certificate | None:
        """The certificate, once enough voters signed one outcome and one state that we know."""
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
        """Who voted for which outcome and state."""
        tally: dict[tuple[bytes, bytes], set[PeerId]] = {}
        for sender, (vote, _) in self.votes.items():
            tally.setdefault((vote.outcome, vote.state), set()).add(sender)
        return tally
