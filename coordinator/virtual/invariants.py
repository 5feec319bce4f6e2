"""What must hold whatever happens (design §6.5): watched on every action of every peer, and judged at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.actions import Action, Adopt, RecordVote, Send, Tell, VoteRecord
from coordinator.certificate import Certificate, votes_needed
from coordinator.messages import STATEMENT_BODIES, Check, Join, Result, Roster
from coordinator.timeline import LOCK_DEADLINES
from coordinator.virtual.peer import VirtualPeer
from dht.identity import PeerId
from dht.statement import Statement

MESSAGES_PER_PEER_ROUND_MAX = 400  # far above any honest round of a dozen peers; catches storms


class InvariantError(AssertionError):
    """A run of the simulator broke a promise of the protocol."""


@dataclass(slots=True)
class Watcher:
    """Sees every action of every virtual peer."""

    round_seconds: float
    said: dict[tuple[object, ...], bytes] = field(default_factory=dict)
    abstained: dict[bytes, set[PeerId]] = field(default_factory=lambda: defaultdict(set))
    votes: dict[tuple[PeerId, int, bytes], list[tuple[float, VoteRecord]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    released: set[tuple[int, bytes]] = field(default_factory=set)  # (fragment, parent) where a vote's lock ran out
    full: dict[tuple[int, bytes], Certificate] = field(default_factory=dict)
    certified: dict[bytes, Certificate] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    forks: int = 0

    def __call__(self, peer: VirtualPeer, action: Action) -> None:
        if isinstance(action, Send):
            if isinstance(action.message, Statement) and action.message.sender == peer.me:
                self._no_contradiction(peer, action.message)
        elif isinstance(action, RecordVote):
            self._vote_is_free(peer, action.record)
        elif isinstance(action, Adopt):
            self._one_version(action.certificate)
        elif isinstance(action, Tell):
            self.told[action.event] += 1

    def _no_contradiction(self, peer: VirtualPeer, statement: Statement) -> None:
        """(6) An honest peer never signs two statements that differ only in their body."""
        assert peer.engine is not None
        context = statement.context
        if context.kind == "abstain":
            self.abstained[context.group].add(peer.me)
        where = (
            peer.me,
            peer.engine.core.boot,
            context.kind,
            context.fragment,
            context.version,
            context.group,
            *_place(statement),
        )
        if self.said.setdefault(where, statement.body) != statement.body:
            raise InvariantError(f"{peer.me} contradicts itself in a {context.kind}")

    def _vote_is_free(self, peer: VirtualPeer, record: VoteRecord) -> None:
        """A voter votes elsewhere only if its earlier group cannot certify any more, or after three deadlines."""
        now = peer.world.clock.now
        if peer.me in self.abstained[record.roster_id]:
            raise InvariantError(f"{peer.me} votes in a group in which it abstained")
        earlier = self.votes[peer.me, record.fragment, record.parent]
        for voted_at, old in earlier:
            if old.roster_id == record.roster_id:
                raise InvariantError(f"{peer.me} votes twice in one group")
            left = len(old.roster) - len(self.abstained[old.roster_id])
            if left < votes_needed(len(old.roster)):
                continue
            if now - voted_at < (LOCK_DEADLINES - 1) * self.round_seconds:
                raise InvariantError(f"{peer.me} breaks the promise of its vote")
            self.released.add((record.fragment, record.parent))
        earlier.append((now, record))

    def _one_version(self, certificate: Certificate) -> None:
        """(1a) Two full certificates for one parent only where voters were cut off for three deadlines."""
        self.certified.setdefault(certificate.digest, certificate)
        if certificate.outcome.minor:
            return
        known = self.full.setdefault((certificate.fragment, certificate.outcome.parent), certificate)
        if known.digest == certificate.digest:
            return
        self.forks += 1
        if (certificate.fragment, certificate.outcome.parent) not in self.released:
            raise InvariantError(f"fragment {certificate.fragment} has two versions {certificate.version}")


def _place(statement: Statement) -> tuple[object, ...]:
    """What else tells two statements of one kind in one group apart."""
    model = STATEMENT_BODIES.get(statement.context.kind)
    body = None if model is None else statement.read(model)
    if isinstance(body, Join):
        return (body.attempt,)
    if isinstance(body, Roster):
        return (body.attempt, body.revision)
    if isinstance(body, Result):
        return (body.partition, body.turn)
    if isinstance(body, Check):
        return (body.phase,)
    return ()


def check_converged(peers: Sequence[VirtualPeer]) -> None:
    """(1b, 8) All live peers hold one lineage, and the state that its newest certificates name."""
    live = [peer for peer in peers if peer.engine is not None]
    heads = {peer.engine.heads() for peer in live if peer.engine is not None}
    if len(heads) != 1:
        raise InvariantError(f"{len(live)} live peers hold {len(heads)} different lineages: {sorted(heads)}")
    for peer in live:
        assert peer.engine is not None
        for machine in peer.engine.machines:
            if peer.tensors.states[machine.index] != machine.chain.state:
                raise InvariantError(f"{peer.me} holds another state of fragment {machine.index} than certified")


def check_tokens(peers: Sequence[VirtualPeer]) -> None:
    """(5) In the lineage that won, no peer has more steps certified than it ever trained."""
    reference = next(peer for peer in peers if peer.engine is not None)
    assert reference.engine is not None
    by_id = {peer.me: peer for peer in peers}
    for machine in reference.engine.machines:
        certified: dict[str, int] = defaultdict(int)
        for certificate in machine.chain.certificates:
            for contributor in certificate.outcome.included():
                certified[contributor.peer] += contributor.steps
        for name, steps in certified.items():
            trained = by_id[PeerId(name)].steps_ever()
            if steps > trained:
                raise InvariantError(f"{name} has {steps} steps certified but trained {trained:.0f}")


def check_bounds(peers: Sequence[VirtualPeer], messages_sent: int, rounds: int) -> None:
    """(7) Memory and messages stay bounded."""
    limit = MESSAGES_PER_PEER_ROUND_MAX * len(peers) * max(rounds, 1)
    if messages_sent > limit:
        raise InvariantError(f"{messages_sent} messages for {rounds} rounds of {len(peers)} peers")
    for peer in peers:
        for machine in peer.engine.machines if peer.engine is not None else ():
            if len(machine.past) > 8 or len(machine.gatherings) > 16:
                raise InvariantError(f"{peer.me} keeps too many old attempts")
