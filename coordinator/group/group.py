"""A group: the members of one attempt at a round, fixed by their leader's roster (design §6.2 steps 2–3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from coordinator.chain.certificate import Conviction, are_convictions, enough_votes, is_minor, votes_needed
from coordinator.chain.chain import Chain, Rules, beacon_order
from coordinator.chain.used_invites import NONE_USED, USES_FRAGMENT, UsedInvites, joined_by
from coordinator.chain.weights import is_plausible
from coordinator.core.actions import RoundKey
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.inputs import Committed
from coordinator.wire.messages import BODY_BYTES_MAX, Bundle, Commit, Join, Roster
from dht.admission import ProvenPass, read_pass
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

JOIN_TOLERANCE_SECONDS = 30  # clocks of honest peers agree this well (`muster doctor` checks)


class OtherBaseError(PeerError):
    """A statement about our version number on another branch. No fault: compare its lineage with ours."""


def inputs_needed(asked: int) -> int:
    """Return the least number of weighted inputs: more than two thirds of the `asked` peers, but not all of three."""
    return min(votes_needed(asked), max(asked - 1, 1))


@dataclass(frozen=True)
class Group:
    """An accepted roster, and all facts that follow from it and the chain."""

    key: RoundKey
    attempt: int
    revision: int
    leader: PeerId
    members: tuple[PeerId, ...]  # in beacon order
    contributors: frozenset[PeerId]
    reducers: tuple[PeerId, ...]  # partition j belongs to reducers[j]
    boots: Mapping[PeerId, bytes]
    active: frozenset[PeerId]
    min_share: float
    beacon: bytes
    parent: bytes
    statement: Statement
    convictions: tuple[Conviction, ...] = ()
    voids: int | None = None  # number of void groups that the leader was in; None if it does not say
    networks: Mapping[PeerId, frozenset[bytes]] = field(default_factory=dict)  # named in the members' joins
    passes: Mapping[PeerId, bytes] = field(default_factory=dict)  # shown in the members' joins
    used_invites: UsedInvites = NONE_USED  # the list of fragment 0 after a version made by this group
    probation: frozenset[PeerId] = frozenset()  # members whose work has no weight; they reduce nothing and do not vote

    @cached_property
    def voters(self) -> frozenset[PeerId]:
        """The members whose votes count: all but those on probation (docs/adr/0056)."""
        return frozenset(self.members) - self.probation

    @property
    def expected(self) -> int:
        """How many members the group would have if nobody of the active set were missing (docs/adr/0046)."""
        return max(len(self.members), min(len(self.active), PEERS_PER_GROUP_MAX))

    @property
    def partitions(self) -> int:
        return len(self.reducers)

    @property
    def minor(self) -> bool:
        return is_minor(self.voters, self.active, self.min_share)

    @property
    def votes_needed(self) -> int:
        return votes_needed(len(self.voters))

    def certifies(self, voters: frozenset[PeerId]) -> bool:
        return enough_votes(voters, self.voters, self.active, self.min_share)

    def more_than_a_third(self, peers: frozenset[PeerId]) -> bool:
        return 3 * len(peers & self.voters) > len(self.voters)

    def more_than_two_thirds(self, peers: frozenset[PeerId]) -> bool:
        return len(peers & self.voters) >= self.votes_needed

    def counted(self, peers: Iterable[PeerId]) -> int:
        """Return how many of these peers contribute an input with weight."""
        return len(self.contributors.intersection(peers) - self.probation)

    def inputs_needed(self, left_out: int) -> int:
        """Return the least number of weighted inputs in an input set, counted from all peers that asked.

        `left_out` of these are not in the roster. Without them in the count, a hostile leader could leave out all
        honest contributors (docs/adr/0038).
        """
        return inputs_needed(self.counted(self.contributors) + left_out)

    def merged_needed(self, inputs: int, left_out: int) -> int:
        """Return the least number of weighted inputs per partition: fewer than a third of the askers are never half."""
        return (2 * (self.counted(self.contributors) + left_out) + 1) // 3

    def reducer(self, partition: int, redone: Collection[int] = ()) -> PeerId:
        """Return the reducer of a partition: its own one or, if it is `redone`, one whose own partition is not redone.

        These reducers take turns, beginning with the next in order. If all partitions are redone, each reducer takes
        over the partition before its own.
        """
        order, count = self.reducers, self.partitions
        if partition not in redone:
            return order[partition]
        first = min(redone)
        after = [(first + step) % count for step in range(1, count + 1)]
        standing = [place for place in after if place not in redone]
        if not standing:
            return order[(partition + 1) % count]
        return order[standing[sorted(redone).index(partition) % len(standing)]]

    def receivers(self, reducer: PeerId) -> tuple[PeerId, ...]:
        """Return the peers that get the results of a reducer."""
        return self.members

    def proposers(self) -> tuple[PeerId, ...]:
        """Return the leader, then the member that may propose once if the leader is silent."""
        rest = tuple(member for member in self.members if member in self.voters and member != self.leader)
        return (self.leader, *rest[:1])


def read_join(statement: Statement, chain: Chain, unix_seconds: float) -> Join:
    """Return the body of a join for the chain's next version; raises PeerError with the reason if it does not count."""
    context = statement.context
    if (context.run_id, context.kind) != (chain.rules.run_id, "join"):
        raise PeerError("is no join of this run")
    if (context.fragment, context.version) != (chain.fragment, chain.version):
        raise PeerError("joins another version")
    if context.group != chain.digest:
        raise OtherBaseError("joins another base")
    join = statement.read(Join)
    if join.leader != leader_of(chain, join.attempt):
        raise PeerError("names the wrong leader")
    if statement.sender in chain.convicted():
        raise PeerError("was convicted by this chain")
    if join.expires_unix_seconds < unix_seconds - JOIN_TOLERANCE_SECONDS:
        raise PeerError("has expired")
    if not statement.verify(chain.rules.verifier):
        raise PeerError("is not signed by its sender")
    _pass_of(PeerId(statement.sender), join, chain.rules)
    return join


def _pass_of(peer: PeerId, join: Join, rules: Rules) -> ProvenPass | None:
    """Return the pass in a join, None if none is needed. Raises PeerError if it is needed and not valid."""
    if rules.admission is None or not rules.admission.asks_for_passes or peer in rules.keyholders:
        return None
    return read_pass(join.admission or b"", peer, rules.authority)


def _used_invites(joins: Mapping[PeerId, Join], chain: Chain) -> UsedInvites:
    """Return the used invites of fragment 0 including these joins, whose passes `read_join` has checked."""
    if chain.fragment != USES_FRAGMENT:
        return NONE_USED
    shown = {peer: _pass_of(peer, join, chain.rules) for peer, join in joins.items()}
    limited = {peer: PeerId(one.grant.key) for peer, one in shown.items() if one is not None and one.grant.is_limited}
    return joined_by(chain.used_invites(), limited)


def leader_of(chain: Chain, attempt: int) -> PeerId:
    """Return the leader of an attempt: attempt k belongs to the k-th peer in leader order, cyclically."""
    leaders = chain.leaders()
    return leaders[attempt % len(leaders)]


def reducing(able: Sequence[PeerId], dialable: Set[PeerId]) -> tuple[PeerId, ...]:
    """Return the reducers: the dialable members or, if there are none, all (a lone peer needs no call)."""
    return tuple(member for member in able if member in dialable) or tuple(able)


def read_group(statement: Statement, chain: Chain, unix_seconds: float) -> Group:
    """Return the group that a roster statement defines; raises PeerError with the reason if it is refused."""
    context = statement.context
    if (context.run_id, context.kind) != (chain.rules.run_id, "roster"):
        raise PeerError("is no roster of this run")
    if (context.fragment, context.version) != (chain.fragment, chain.version):
        raise PeerError("is for another version")
    if context.group != chain.digest:
        raise OtherBaseError("is for another base")
    roster = statement.read(Roster)
    if statement.sender != leader_of(chain, roster.attempt):
        raise PeerError("comes from the wrong leader")
    if not statement.verify(chain.rules.verifier):
        raise PeerError("is not signed by the leader")
    joins: dict[PeerId, Join] = {}
    for signed in roster.joins:
        join = read_join(signed, chain, unix_seconds)
        if join.attempt != roster.attempt:
            raise PeerError("holds a join for another attempt")
        joins[PeerId(signed.sender)] = join
    if len(joins) != len(roster.joins):
        raise PeerError("lists a member twice")
    if not are_convictions(roster.convictions, joins.keys()):
        raise PeerError("convicts a member, or a key twice")
    return _group(statement, roster, joins, chain)


def _group(statement: Statement, roster: Roster, joins: Mapping[PeerId, Join], chain: Chain) -> Group:
    beacon = chain.beacon()
    members = beacon_order(beacon, joins)
    probation = chain.on_probation(joins.keys())
    able = [member for member in members if joins[member].contributes and member not in probation]
    reducers = reducing(able, {member for member in able if joins[member].dialable})
    if not reducers:
        raise PeerError("has nobody who could reduce")
    return Group(
        key=RoundKey(chain.fragment, chain.version, statement.digest),
        attempt=roster.attempt,
        revision=roster.revision,
        leader=PeerId(statement.sender),
        members=members,
        contributors=frozenset(member for member in members if joins[member].contributes),
        reducers=reducers,
        boots={member: join.boot for member, join in joins.items()},
        active=chain.active_set(),
        min_share=chain.rules.min_share,
        beacon=beacon,
        parent=chain.digest,
        statement=statement,
        convictions=roster.convictions,
        voids=roster.voids,
        networks={member: frozenset(join.networks) for member, join in joins.items()},
        passes={member: join.admission or b"" for member, join in joins.items()},
        used_invites=_used_invites(joins, chain),
        probation=probation,
    )


@dataclass(frozen=True)
class InputSet(Committed):
    """The commitments of a round, fixed by the leader's bundle; places are indices into `peers`."""

    digest: bytes
    peers: tuple[PeerId, ...]
    statement: Statement

    @property
    def signed(self) -> tuple[Statement, ...]:
        """The commitments with their members' signatures, in the same order."""
        return self.statement.read(Bundle).commits

    def index(self, peer: PeerId) -> int | None:
        return self.peers.index(peer) if peer in self.peers else None


def read_commit(statement: Statement, group: Group, codec: str, rules: Rules) -> Commit:
    """Return the body of a member's commitment; raises PeerError with the reason if it does not count."""
    context, key = statement.context, group.key
    place = (rules.run_id, "commit", key.fragment, key.version)
    if (context.run_id, context.kind, context.fragment, context.version) != place:
        raise PeerError("is no commitment to this round")
    if context.group != key.roster_id or statement.sender not in group.contributors:
        raise PeerError("does not belong to this group")
    if len(statement.body) > BODY_BYTES_MAX["commit"]:  # applies in a bundle, too: it would be too long for evidence
        raise PeerError("is too long")
    commit = statement.read(Commit)
    if commit.codec != codec or len(commit.part_roots) != group.partitions:
        raise PeerError("commits in the wrong form")
    if not is_plausible(commit.tokens, commit.steps, commit.window_count, rules.tokens_per_step):
        raise PeerError("claims work that nobody can have done")
    if commit.probation != (statement.sender in group.probation):
        raise PeerError("is wrong about being on probation")
    if not statement.verify(rules.verifier):
        raise PeerError("is not signed by its sender")
    return commit


def read_input_set(statement: Statement, group: Group, codec: str, chain: Chain) -> InputSet:
    """Return the input set that a bundle fixes; raises PeerError with the reason if it is refused."""
    context, key, rules = statement.context, group.key, chain.rules
    if (context.run_id, context.kind, context.group) != (rules.run_id, "bundle", key.roster_id):
        raise PeerError("is no bundle of this group")
    if statement.sender != group.leader or not statement.verify(rules.verifier):
        raise PeerError("is not signed by the leader")
    bundle = statement.read(Bundle)
    if bundle.members != group.expected:
        raise PeerError("says that the group has another size")
    commits: dict[PeerId, Commit] = {}
    for signed in bundle.commits:
        commits[PeerId(signed.sender)] = read_commit(signed, group, codec, rules)
    if len(commits) != len(bundle.commits):
        raise PeerError("holds two commitments of one member")
    return InputSet(tuple(commits.values()), bundle.members, statement.digest, tuple(commits), statement)
