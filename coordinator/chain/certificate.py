"""Certificates: the only thing that makes a version exist (design §6.3).

Pure functions define what an outcome is, how many votes certify it, and why a certificate is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from functools import cached_property
from typing import Annotated, ClassVar

from pydantic import Field

from coordinator.chain.used_invites import INVITED_MAX, InviteUses
from coordinator.chain.weights import creditable
from coordinator.run.manifest import FRAGMENTS_MAX, PEERS_PER_GROUP_MAX
from dht.errors import PeerError
from dht.identity import PeerId, Verifier
from dht.statement import Digest, PeerIdText, Statement, digest_of
from dht.wire import Wire

NO_TRUST_TABLE = digest_of(b"muster-trust", b"everybody")
"""The value of an outcome's `trust` if it convicts no key."""

CONVICTIONS_MAX = PEERS_PER_GROUP_MAX


VOTE_BODY_BYTES_MAX = 1 << 8  # room for fields that we do not know, but a certificate must fit into a log

COUNT_MAX = 2**53
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
MemberIndex = Annotated[int, Field(ge=0, lt=PEERS_PER_GROUP_MAX)]
"""Position in the input set."""


class PartitionOutcome(Wire):
    """The reducer of a partition, the root of its result, and the members whose inputs are included."""

    reducer: PeerIdText
    root: Digest
    included: tuple[MemberIndex, ...] = Field(max_length=PEERS_PER_GROUP_MAX)


class Contributor(Wire):
    """A member's claimed work since its last contribution to this fragment; for a cell also the yield's digest."""

    OMITS_NONE: ClassVar[bool] = True

    peer: PeerIdText
    tokens: Count
    steps: Count
    cell: Digest | None = None  # of the `CellYield` that it brings; None for its own work


class Conviction(Wire):
    """A key that lost its place for good, and the digest of the evidence that proves why (design §9)."""

    peer: PeerIdText
    evidence: Digest


class Outcome(Wire):
    """Everything a round decided except the new state's bytes; voters sign its digest. A void partition is None."""

    OMITS_NONE: ClassVar[bool] = True

    fragment: int = Field(ge=0, lt=FRAGMENTS_MAX)
    version: int = Field(ge=1)
    parent: Digest
    attempt: int = Field(ge=0)
    minor: bool
    roster_id: Digest
    roster: tuple[PeerIdText, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    input_set: Digest
    contributors: tuple[Contributor, ...] = Field(  # the input set in order
        min_length=1, max_length=PEERS_PER_GROUP_MAX
    )
    partitions: tuple[PartitionOutcome | None, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    coin: Digest
    active_set: Digest
    trust: Digest
    used_invites: tuple[InviteUses, ...] | None = Field(None, max_length=INVITED_MAX)  # of fragment 0, if there are any

    @cached_property
    def digest(self) -> bytes:
        return digest_of(b"muster-outcome", self.to_wire())

    @property
    def tokens(self) -> int:
        """Tokens that this version certifies: those of members whose input is in at least one partition."""
        return sum(self.credited().values())

    def credited(self) -> dict[str, int]:
        """Return the tokens of each included member that count in every sum: its claim, bounded (docs/adr/0035)."""
        included = self.included()
        tokens = creditable([one.tokens for one in included])
        return {one.peer: counted for one, counted in zip(included, tokens, strict=True)}

    def included(self) -> tuple[Contributor, ...]:
        """Return the members of the input set whose input is in at least one partition."""
        indices = set().union(*(partition.included for partition in self.partitions if partition is not None))
        return tuple(one for member, one in enumerate(self.contributors) if member in indices)

    def included_in(self, peer: PeerId) -> tuple[bool, ...]:
        """Return for each partition whether this peer's contribution is in it."""
        member = next((index for index, one in enumerate(self.contributors) if one.peer == peer), -1)
        return tuple(partition is not None and member in partition.included for partition in self.partitions)

    @cached_property
    def roster_ids(self) -> frozenset[PeerId]:
        return frozenset(PeerId(peer) for peer in self.roster)


class Vote(Wire):
    """A voter's statement that this outcome, applied to the parent, gives this state."""

    outcome: Digest
    state: Digest


class Certificate(Wire):
    """An outcome with the votes that make it a version."""

    outcome: Outcome
    state: Digest
    votes: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    convictions: tuple[Conviction, ...] = Field((), max_length=CONVICTIONS_MAX)  # the outcome's `trust` is their digest

    @cached_property
    def digest(self) -> bytes:
        """Digest that names the version. It leaves out the signatures: their collector could grind (design §6.1)."""
        return digest_of(b"muster-version", self.outcome.digest, self.state)

    @cached_property
    def encoded_bytes(self) -> int:
        """Length of the encoding, measured once: a certificate is long, and sent to many."""
        return len(self.to_wire())

    @property
    def fragment(self) -> int:
        return self.outcome.fragment

    @property
    def version(self) -> int:
        return self.outcome.version

    @cached_property
    def voters(self) -> frozenset[PeerId]:
        """Keys that signed."""
        return frozenset(PeerId(vote.sender) for vote in self.votes)

    def beacon(self) -> bytes:
        """Return the public randomness of the next round (design §6.1)."""
        return digest_of(
            b"muster-beacon",
            self.fragment.to_bytes(4, "big"),
            self.version.to_bytes(8, "big"),
            self.digest,
            self.outcome.coin,
        )


def trust_digest(convictions: Sequence[Conviction]) -> bytes:
    """Return the digest that stands in an outcome for the convictions that its certificate lists."""
    if not convictions:
        return NO_TRUST_TABLE
    return digest_of(b"muster-trust", *(one.to_wire() for one in convictions))


def are_convictions(convictions: Sequence[Conviction], roster: Collection[PeerId]) -> bool:
    """Whether the convictions are in order and name each key once, and no key in the roster."""
    peers = [PeerId(one.peer) for one in convictions]
    return peers == sorted(set(peers)) and not set(peers) & set(roster)


def is_void(partitions: Sequence[object | None]) -> bool:
    """Whether the round is void, as more than a third of the partitions are void (None) (design §6.2 step 8)."""
    return 3 * partitions.count(None) > len(partitions)


def votes_needed(voters: int) -> int:
    """Return the least number above two thirds of the voters: 1, 2, 3, 3, 4, 5, 5, 6 for 1…8."""
    return 2 * voters // 3 + 1


def more_than_share(present: int, active: int, share: float) -> bool:
    """True if `present` of the active set exceed the manifest's `min_share`."""
    return present > share * active


def is_minor(roster: Collection[PeerId], active: Set[PeerId], share: float) -> bool:
    """Whether a roster can certify only a minor version, as it cannot exceed `min_share` of the active set."""
    return not more_than_share(len(active & frozenset(roster)), len(active), share)


def enough_votes(voters: Set[PeerId], electors: Set[PeerId], active: Set[PeerId], share: float) -> bool:
    """Whether more than two thirds of a roster's `electors` voted and, unless it is minor, enough of the active set."""
    inside = voters & electors
    if len(inside) < votes_needed(len(electors)):
        return False
    return is_minor(electors, active, share) or more_than_share(len(inside & active), len(active), share)


def active_set_digest(active: Collection[PeerId]) -> bytes:
    """Return the digest of an active set, independent of order."""
    return digest_of(b"muster-active", *(peer.encode() for peer in sorted(active)))


def chain_mismatch(
    certificate: Certificate, parent: bytes, electors: Set[PeerId], active: Set[PeerId], share: float
) -> str | None:
    """Return why this certificate does not follow `parent`, whose active set is `active`; None if it does.

    `electors` are the members of its roster that vote.
    """
    outcome = certificate.outcome
    if outcome.parent != parent:
        return "names another parent"
    if outcome.active_set != active_set_digest(active):
        return "names another active set"
    if outcome.minor != is_minor(outcome.roster_ids, active, share):
        return "is wrong about being minor"
    if outcome.minor and outcome.version == 1:
        return "a first version is never minor"
    return None if enough_votes(certificate.voters, electors, active, share) else "has too few votes"


def refusal(certificate: Certificate, run_id: bytes, electors_min: int, verifier: Verifier) -> str | None:
    """Return what is wrong with a certificate, whatever it follows; None if nothing is.

    Checks its own contents and its roster's signatures. At least `electors_min` of the roster vote.
    """
    outcome = certificate.outcome
    if outcome.trust != trust_digest(certificate.convictions):
        return "names another trust table"
    if not are_convictions(certificate.convictions, outcome.roster_ids):
        return "convicts a member of its own roster, or a key twice"
    if not certificate.voters <= outcome.roster_ids:
        return "has a vote from outside its roster"
    if len(certificate.voters) < votes_needed(electors_min):
        return "has too few votes"
    return _inconsistency(outcome) or _bad_vote(certificate, run_id, verifier)


def _inconsistency(outcome: Outcome) -> str | None:
    if len(outcome.roster_ids) != len(outcome.roster):
        return "roster names a peer twice"
    contributors = {contributor.peer for contributor in outcome.contributors}
    if len(contributors) != len(outcome.contributors) or not contributors <= set(outcome.roster):
        return "a contributor is named twice or not in the roster"
    for partition in outcome.partitions:
        if partition is not None and not all(member < len(outcome.contributors) for member in partition.included):
            return "a partition includes an input that does not exist"
    if is_void(outcome.partitions):
        return "more than a third of the partitions are void"
    return None


def _bad_vote(certificate: Certificate, run_id: bytes, verifier: Verifier) -> str | None:
    if len(certificate.voters) != len(certificate.votes):
        return "a voter signed twice"
    for vote in certificate.votes:
        if not _is_vote_for(certificate, vote, run_id, verifier):
            return f"the vote of {vote.sender} does not count"
    return None


def _is_vote_for(certificate: Certificate, vote: Statement, run_id: bytes, verifier: Verifier) -> bool:
    outcome, context = certificate.outcome, vote.context
    if (context.run_id, context.kind, context.group) != (run_id, "vote", outcome.roster_id):
        return False
    if (context.fragment, context.version) != (outcome.fragment, outcome.version - 1):
        return False
    if len(vote.body) > VOTE_BODY_BYTES_MAX:
        return False
    try:
        body = vote.read(Vote)
    except PeerError:
        return False
    return (body.outcome, body.state) == (outcome.digest, certificate.state) and vote.verify(verifier)
