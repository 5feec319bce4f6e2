"""Invariants that must always hold (design §6.5), checked on every action and after every event of every peer.

| design §6.5 | here |
| --- | --- |
| (1a) one full version per parent | `Watcher.meet` with `_excuses`, and `_vote_is_free` for the promise behind it |
| (1b) no peer leaves the branch that most signed last | `Lasting`, called in `Watcher.handled` |
| (1b) one lineage after healing, (8) back to a verified state | `check_converged`; every adopted state at `_adopts` |
| (2) no inner step waits for the network | true by construction: a `VirtualLearner` is a pure function of time |
| (3) versions advance | `World.endure` while hostile peers act, `World.settle`; both count virtual seconds |
| (4) applied values stay inside their bounds | `_honest_are_more`: states are digests here, contributors have names |
| (5) tokens count once, nothing is lost | `check_work` in `coordinator.simulator.judgement` |
| (6) no honest key contradicts itself, across restarts, or is banned | `Watcher._no_contradiction`, `acts` |
| (7) memory and messages are bounded, no peer hangs | `Watcher.handled`, memory by fragment in turn; `check_messages` |

The watcher is no peer: it counts votes with its own arithmetic and knows all statements that were really made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate, Outcome
from coordinator.chain.newcomer_limits import most_newcomers
from coordinator.chain.weights import weights_of
from coordinator.core.actions import Action, Adopt, IncludedUnseen, KeepEvidence, RecordVote, Send, Tell, VoteRecord
from coordinator.core.own_work import ROUNDS_KEPT
from coordinator.core.state_sync import UNSERVED_MAX
from coordinator.core.vote_locks import BASES_MAX
from coordinator.engine.enforcement import PEERS_KEPT
from coordinator.engine.engine import TICK_SECONDS_MIN, Engine
from coordinator.engine.fork_choice import PROBES_MAX, RIVALS_MAX
from coordinator.engine.fragment import FragmentMachine
from coordinator.engine.version_round import PAST_ATTEMPTS_MAX
from coordinator.group.group import Group
from coordinator.group.joining import GATHERINGS_MAX
from coordinator.group.own_joins import JOINS_KEPT_MAX
from coordinator.group.roster_building import JOINS_MAX
from coordinator.round.early_messages import EARLY_MESSAGES_MAX
from coordinator.simulator.lasting import Lasting
from coordinator.simulator.observer import EventCounter
from coordinator.simulator.peer import VirtualPeer
from coordinator.trust.bans import BANS_MAX
from coordinator.trust.equivocation import STATEMENTS_KEPT, VERSIONS_KEPT
from coordinator.trust.evidence import Guilt
from coordinator.trust.orders import ORDERS_MAX
from coordinator.trust.statement_slots import slot_of
from dht.identity import PeerId
from dht.statement import Statement

NOBODY: frozenset[PeerId] = frozenset()
MEASURED_EVENTS = 4  # after this many events the next of a peer's fragments is measured, in turn
MESSAGES_PER_PEER_ROUND_MAX = 400  # far above any honest round of a dozen peers; catches storms


class InvariantError(AssertionError):
    """A broken promise of the protocol in a run of the simulator."""


@dataclass(frozen=True, slots=True)
class CastVote:
    """A vote as its voter recorded it, and the time until which it promised not to vote elsewhere."""

    record: VoteRecord
    binds_until: float
    active: frozenset[PeerId] | None  # None if the group is minor, or unknown because the chain has moved on already


@dataclass(slots=True)
class Watcher(EventCounter):
    """A judge of every action of every virtual peer."""

    min_share: float = 0.5
    said: dict[tuple[object, ...], bytes] = field(default_factory=dict)
    abstained: dict[bytes, set[PeerId]] = field(default_factory=lambda: defaultdict(set))
    votes: dict[tuple[PeerId, int, bytes], list[CastVote]] = field(default_factory=lambda: defaultdict(list))
    electors: dict[bytes, frozenset[PeerId]] = field(default_factory=dict)  # voters, by roster with a vote
    learners: dict[bytes, frozenset[PeerId]] = field(default_factory=dict)  # contributors with weight in these rosters
    sizes: dict[bytes, int] = field(default_factory=dict)  # sizes of these groups if nobody had been missing
    camps: dict[bytes, dict[PeerId, tuple[bytes, bytes]]] = field(default_factory=lambda: defaultdict(dict))
    freed: dict[tuple[int, bytes], set[PeerId]] = field(default_factory=lambda: defaultdict(set))  # see `_excuses`
    disturbed: set[PeerId] = field(default_factory=set)  # changed lineage, or adopted a version without a snapshot
    hostile: set[PeerId] = field(default_factory=set)
    bans: dict[PeerId, set[PeerId]] = field(default_factory=lambda: defaultdict(set))  # by banned peer: who banned it
    lasting: Lasting = field(default_factory=Lasting)
    _judged: Statement | None = None  # the last statement: one that goes to many peers comes many times in a row
    _events: int = 0

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        """Judge one action before it is carried out."""
        EventCounter.acts(self, peer, action)
        if isinstance(action, Send):
            message = action.message
            honest = peer.me not in self.hostile  # a hostile one may even repeat its own second version
            if honest and isinstance(message, Statement) and message.sender == peer.me:
                self._no_contradiction(peer, message)
        elif isinstance(action, RecordVote):
            self._vote_is_free(peer, action.record)
        elif isinstance(action, Adopt):
            self._adopts(peer, action)
        elif isinstance(action, KeepEvidence):
            self._bans(peer, action.ban.guilt)
        elif isinstance(action, Tell) and action.event in ("lineage_changed", "version_unserved"):
            self.disturbed.add(peer.me)
            if action.event == "lineage_changed" and peer.engine is not None:
                self.lasting.leave(peer.me, peer.engine.machines[action.fragment])

    def _bans(self, peer: VirtualPeer, guilt: Guilt) -> None:
        """(6) Raise InvariantError if a peer bans an honest one, unless by an authorised order."""
        if guilt.issued is not None:
            return
        if guilt.peer not in self.hostile:
            raise InvariantError(f"{peer.me} bans {guilt.peer}, which is honest and «{guilt.reason}»")
        self.bans[guilt.peer].add(peer.me)

    def _no_contradiction(self, peer: VirtualPeer, statement: Statement) -> None:
        """(6) Raise InvariantError if an honest peer signs two statements that seem to contradict each other."""
        if statement is self._judged:
            return
        self._judged, context = statement, statement.context
        where = slot_of(statement) or (peer.me, statement.digest)  # no slot: it convicts nobody, and may vary
        if self.said.get(where) == statement.body:
            return  # a repetition
        if context.kind == "abstain":
            self.abstained[context.group].add(peer.me)
        elif peer.me in self.abstained.get(context.group, ()):
            raise InvariantError(f"{peer.me} says {context.kind} in a group in which it abstained")
        if self.said.setdefault(where, statement.body) != statement.body:
            raise InvariantError(f"{peer.me} contradicts itself in a {context.kind}")

    def _vote_is_free(self, peer: VirtualPeer, record: VoteRecord) -> None:
        """Raise InvariantError if a peer votes again within three deadlines of a vote that may still certify."""
        assert peer.engine is not None
        now = peer.world.clock.now
        if peer.me in self.abstained[record.roster_id]:
            raise InvariantError(f"{peer.me} votes in a group in which it abstained")
        earlier = self.votes[peer.me, record.fragment, record.parent]
        for old in earlier:
            if old.record not in peer.disk.votes:
                continue  # its voter died before it was written, so it was never sent
            if old.record.roster_id == record.roster_id:
                raise InvariantError(f"{peer.me} votes twice in one group")
            if self._may_certify(old, self.hostile):
                if now < old.binds_until:
                    raise InvariantError(f"{peer.me} breaks the promise of its vote")
                self.freed[record.fragment, record.parent].add(peer.me)
            elif self._may_certify(old):  # hostile voters may have told it that they do not vote for this
                self.freed[record.fragment, record.parent].add(peer.me)
        machine = peer.engine.machines[record.fragment]
        attempt = machine.rounds.find(record.roster_id)  # None if this very event has moved the chain on
        until = machine.vote_locks.at(record.parent).until if attempt is None else attempt.timeline.lock_end
        active = None if attempt is None or attempt.group.minor else attempt.group.active
        earlier.append(CastVote(record, until, active))
        if attempt is not None:
            self._is_entitled(peer, attempt.group)
            self.electors[record.roster_id] = attempt.group.voters
            self.learners[record.roster_id] = attempt.group.contributors - attempt.group.probation
            self.sizes[record.roster_id] = attempt.group.expected
        self.camps[record.roster_id][peer.me] = (record.outcome, record.state)

    def _is_entitled(self, peer: VirtualPeer, group: Group) -> None:
        """Raise InvariantError if a voter is on probation, or too many members are."""
        assert peer.engine is not None
        trust, members = peer.engine.core.rules.trust, len(group.members)
        few = most_newcomers(trust.newcomers_share, members) if trust.probation_rounds else 0
        if peer.me not in group.voters or len(group.voters) < members - few:
            raise InvariantError(f"{peer.me} votes in a group of {members} in which {sorted(group.voters)} do")

    def _may_certify(self, vote: CastVote, without: Set[PeerId] = NOBODY) -> bool:
        """Whether enough voters could still sign the same as this vote if those in `without` do not.

        Statements of hostile voters rule nothing out: they may sign anything else, too.
        """
        record = vote.record
        camps, abstained = self.camps[record.roster_id], self.abstained[record.roster_id]
        against = {voter for voter, camp in camps.items() if camp != (record.outcome, record.state)}
        electors = self.electors.get(record.roster_id, frozenset(record.roster))
        left = electors - ((against | abstained) - self.hostile) - without
        if 3 * len(left) <= 2 * len(electors):
            return False
        return vote.active is None or len(left & vote.active) > self.min_share * len(vote.active)

    def meet(self, certificate: Certificate) -> bool:
        """Record a certificate and return whether it is new; raises InvariantError if it breaks (1a).

        Two full certificates for one parent come only from hostile keys, or voters cut off for three deadlines.
        """
        self.lasting.meet(certificate)
        forks, known = self.forks, self.full.get((certificate.fragment, certificate.outcome.parent))
        if not EventCounter.meet(self, certificate):
            return False
        outcome = certificate.outcome
        electors, votes = self._electors(outcome), len(self._counted_votes(certificate))
        if 3 * votes <= 2 * len(electors):
            raise InvariantError(f"a version of {len(electors)} voters has {votes} votes")
        self._honest_are_more(certificate)
        forked = self.forks > forks
        if forked and known is not None and self.min_share >= 0.5 and not self._excuses(known, certificate):
            raise InvariantError(f"fragment {outcome.fragment} has two versions {certificate.version}")
        return True

    def _counted_votes(self, certificate: Certificate) -> frozenset[PeerId]:
        """Return the voters of a certificate that were entitled to vote."""
        return certificate.voters & self._electors(certificate.outcome)

    def _electors(self, outcome: Outcome) -> frozenset[PeerId]:
        """Return the peers entitled to vote, as recorded with the votes; the whole roster if no vote was seen."""
        return self.electors.get(outcome.roster_id, outcome.roster_ids)

    def _honest_are_more(self, certificate: Certificate) -> None:
        """(4) Raise InvariantError if hostile peers, fewer than a third, have half of the weight (docs/adr/0038)."""
        outcome = certificate.outcome
        learners = self.learners.get(outcome.roster_id, NOBODY)
        electors = self.electors.get(outcome.roster_id, NOBODY)
        if 3 * len(electors & self.hostile) >= len(learners):
            return
        if self.largest_share(certificate) >= 0.5:
            raise InvariantError(f"half of what version {outcome.version} merges is of hostile peers")

    def largest_share(self, certificate: Certificate) -> float:
        """Return the hostile peers' largest share of a partition's weight, 0 to 1; 1 if a partition has no weight."""
        outcome, most = certificate.outcome, 0.0
        counters = [(one.tokens, one.steps) for one in outcome.contributors]
        for partition in filter(None, outcome.partitions):
            weights = weights_of(counters, self.sizes[outcome.roster_id], partition.included)
            theirs = [at for at in partition.included if PeerId(outcome.contributors[at].peer) in self.hostile]
            everybodys = sum(weights[at] for at in partition.included)
            most = max(most, sum(weights[at] for at in theirs) / everybodys if everybodys else 1.0)
        return most

    def _excuses(self, one: Certificate, other: Certificate) -> bool:
        """Whether these two certificates can exist although no honest peer broke a promise.

        Both have more than half of one active set, so some peers voted for both. Each of these must be hostile, or was
        free: the lock of its first vote had run out, or that vote could certify only with votes of hostile peers.
        """
        both = self._counted_votes(one) & self._counted_votes(other)
        return bool(both) and both <= self.hostile | self.freed.get((one.fragment, one.outcome.parent), set())

    def _adopts(self, peer: VirtualPeer, action: Adopt) -> None:
        """(8) Raise InvariantError if a peer adopts an uncertified state, or a snapshot that it has discarded."""
        if action.applied is not None and peer.tensors.applied.get(action.applied) != action.certificate.state:
            raise InvariantError(f"{peer.me} adopts another state than certified")
        if action.snapshot is not None and action.snapshot not in peer.tensors.snapshots:
            raise InvariantError(f"{peer.me} adopts with a snapshot that it has discarded")
        if isinstance(action.ours, IncludedUnseen):
            self.disturbed.add(peer.me)

    def handled(self, peer: VirtualPeer) -> None:
        """(7) Raise InvariantError if a peer's memory is not bounded, or a group outlives its deadline.

        It measures one fragment now and then, in turn: an excess would last longer than a turn takes.
        """
        if peer.engine is None:
            return
        engine, now = peer.engine, peer.world.clock.now
        for machine in engine.machines:
            if machine.attempt is not None and now > machine.attempt.timeline.end + TICK_SECONDS_MIN:
                raise InvariantError(f"{peer.me} is still in a group whose deadline has passed")
        self._events += 1
        if self._events % MEASURED_EVENTS == 0:
            self._measure(peer.me, engine)
        if self.lasting.handled(peer.me, engine.machines, self.hostile) and peer.me not in self.hostile:
            raise InvariantError(f"{peer.me} leaves what most of the honest signed last")

    def _measure(self, me: PeerId, engine: Engine) -> None:
        """Raise InvariantError if one of the fragments, or the shared memory beside them, has grown too much."""
        measured = engine.machines[self._events // MEASURED_EVENTS % len(engine.machines)]
        if not _is_bounded(measured):
            raise InvariantError(f"{me} keeps too much of fragment {measured.index}")
        if not _hears_little(engine):
            raise InvariantError(f"{me} remembers too much of what others say")
        probes = engine.fork_choice.probes.values()
        if len(probes) > PROBES_MAX or sum(probe.holds_chains for probe in probes) > RIVALS_MAX:
            raise InvariantError(f"{me} remembers too many rivals")


def _is_bounded(machine: FragmentMachine) -> bool:
    """Whether every growing collection of a fragment is within its limit."""
    rounds, joining = machine.rounds, machine.rounds.joining
    return (
        len(rounds.past) <= PAST_ATTEMPTS_MAX
        and (rounds.attempt is None or len(rounds.attempt.early_messages) <= EARLY_MESSAGES_MAX)
        and all(len(cell.early_messages) <= EARLY_MESSAGES_MAX for cell in machine.cells.cells())
        and len(joining.gatherings) <= GATHERINGS_MAX
        and all(len(gathering.joins) <= JOINS_MAX for gathering in joining.gatherings.values())
        and joining.own.spoken.keys() <= joining.own.said.keys()
        and len(joining.own.said) <= JOINS_KEPT_MAX
        and len(joining.announced) <= len(machine.chain.active_set())
        and len(machine.vote_locks.known) <= BASES_MAX
        and len(machine.state_sync.unserved) <= UNSERVED_MAX
        and len(machine.own_work.contributed) <= ROUNDS_KEPT
        and len(machine.chain.certificates) <= machine.chain.rules.chain_kept
    )


def _hears_little(engine: Engine) -> bool:
    """Whether the statements, notes and bans kept to convict others are within their limits."""
    enforcement = engine.enforcement
    kept = [heard for equivocations in enforcement.equivocations for heard in equivocations.heard.values()]
    return (
        all(len(equivocations.heard) <= VERSIONS_KEPT for equivocations in enforcement.equivocations)
        and all(len(heard) <= STATEMENTS_KEPT for heard in kept)
        and max(len(enforcement.asked), len(enforcement.told), len(enforcement.ignored_senders)) <= PEERS_KEPT
        and len(engine.core.bans.held) <= BANS_MAX + ORDERS_MAX
        and len(engine.core.bans.given) == len(engine.core.bans.orders) <= ORDERS_MAX
    )
