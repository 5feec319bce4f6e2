"""The messages that peers send each other in a round (design §6.2), in the order in which they are sent.

Statements are signed bodies in a context (`dht.statement`). Notes are unsigned: requests, certificates, which prove
themselves, and parts, which a signed commitment proves. Tensor bytes travel beside a message as its payload and are
named by their Merkle root.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar

from pydantic import Field

from coordinator.chain.certificate import (
    CONVICTIONS_MAX,
    VOTE_BODY_BYTES_MAX,
    Certificate,
    Contributor,
    Conviction,
    Count,
    MemberIndex,
    Vote,
)
from coordinator.chain.lineage import LINEAGE_DEPTH_MAX
from coordinator.run.manifest import FRAGMENTS_MAX, PEERS_PER_GROUP_MAX
from coordinator.wire.openings import PARTITIONS_MAX, OpeningNote, OpenNote, Partition, Refutation, Turn
from dht.admission import PASS_BYTES_MAX
from dht.statement import Digest, PeerIdText, Statement, digest_of
from dht.wire import MESSAGE_BYTES_MAX, Wire

NONCE_BYTES = 16
SEGMENTS_MAX = 3000  # of a contribution: the norms of so many fit into a commitment
COEFFICIENTS_MAX = 1 << 12  # with the norms of all segments they fit into a result
SQUARED_NORM_MAX = 1e36  # of a segment: far beyond any gradient, and no sum or product of admitted inputs overflows
HEARD_MAX = 512
PLACES_ASKED_MAX = 16
NETWORKS_MAX = 4  # of one peer: more than one if it is reached by IPv4 and by IPv6
COUNTED_IN_ONE_BYTE = 15  # items of a msgpack array
CELL_HEIGHT_MAX = 2  # with cells of 32 that is 32,000 peers

Nonce = Annotated[bytes, Field(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
ATTEMPT_MAX = 1 << 20
Attempt = Annotated[int, Field(ge=0, le=ATTEMPT_MAX)]
Network = Annotated[bytes, Field(min_length=3, max_length=6)]
"""An IPv4 /24 or an IPv6 /48, packed (`dht.addresses.network_of`)."""
SquaredNorm = Annotated[float, Field(ge=0, le=SQUARED_NORM_MAX)]
FragmentIndex = Annotated[int, Field(ge=0, lt=FRAGMENTS_MAX)]


class Join(Wire):
    """Asks to take part, as a holder of the base that the context names. Goes to the first leaders in order."""

    OMITS_NONE: ClassVar[bool] = True

    attempt: Attempt
    leader: PeerIdText
    boot: Nonce
    dialable: bool
    contributes: bool  # False for a witness: it votes, but brings no outer gradient
    expires_unix_seconds: Count
    networks: tuple[Network, ...] = Field((), max_length=NETWORKS_MAX)  # the public ones from which it calls
    admission: bytes | None = Field(None, max_length=PASS_BYTES_MAX)  # a `Pass`, if the run asks for one


class Roster(Wire):
    """The leader's list of members for the base in its context. Its digest names the roster in later contexts."""

    attempt: Attempt
    revision: int = Field(ge=0, le=8)
    joins: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    convictions: tuple[Conviction, ...] = Field(
        (), max_length=CONVICTIONS_MAX
    )  # reasons why members of the active set are left out
    voids: Attempt | None = None  # void groups that the leader was in: members double the deadline so many times


class Commit(Wire):
    """A member's commitment to its contribution, made before it sees any other (step 4)."""

    OMITS_NONE: ClassVar[bool] = True

    tokens: Count
    steps: Count
    window_first: Count
    window_count: Count
    codec: str = Field(max_length=16)
    part_roots: tuple[Digest, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)
    squared_norms: tuple[SquaredNorm, ...] = Field(max_length=SEGMENTS_MAX)
    nonce_hashes: tuple[Digest, ...] = Field(min_length=2, max_length=2)
    probation: bool = False  # the contribution has no weight; stated here so that evidence needs no chain
    cell: Digest | None = None  # of the `CellYield` that it brings; None for its own work

    @property
    def tokens_counted(self) -> int:
        """Tokens that give the contribution its weight and are credited."""
        return 0 if self.probation else self.tokens


class Bundle(Wire):
    """All commitments of a round, signed by the leader: the input set. Its digest names the group from here on.

    `members` is the size that the group would have if no peer of the active set were missing, so that all weights
    follow from the bundle alone (docs/adr/0046).
    """

    commits: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    members: int = Field(0, ge=0, le=PEERS_PER_GROUP_MAX)


class PartNote(Wire):
    """Partition j of the sender's contribution, for reducer j; the payload is its encoded bytes (step 5)."""

    group: Digest  # the roster
    partition: Partition
    turn: Turn


class Result(Wire):
    """A reducer's merged partition; the payload is its encoded bytes (step 7).

    `coefficients` has one α per included member, segment after segment; it is empty if the rule has none or they are
    too many. Every peer measures the bytes itself and decides nothing by the norms and error here (docs/adr/0038).
    """

    partition: Partition
    turn: Turn
    root: Digest
    included: tuple[MemberIndex, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    coefficients: tuple[float, ...] = Field(max_length=COEFFICIENTS_MAX)
    squared_norms: tuple[float, ...] = Field(max_length=SEGMENTS_MAX)
    encoding_error: float = Field(ge=0)


class Check(Wire):
    """A member's report on the results (step 8): digests of the result statements it holds, None for each it lacks.

    The digests cover the results' roots. `phase` 1 answers a redo. Among the partitions it holds, `dropped` are those
    that left out its committed input, `doubts` those that it could not verify, and `accused` those that it has sent a
    refutation of.
    """

    phase: Turn
    results: tuple[Digest | None, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)
    complaints: tuple[Partition, ...] = Field(max_length=PARTITIONS_MAX)
    nonce: Nonce | None
    dropped: tuple[Partition, ...] = Field((), max_length=PARTITIONS_MAX)
    doubts: tuple[Partition, ...] = Field((), max_length=PARTITIONS_MAX)
    accused: tuple[Partition, ...] = Field((), max_length=PARTITIONS_MAX)


class Redo(Wire):
    """The leader's request that other reducers reduce these partitions once more."""

    partitions: tuple[Partition, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)
    checks: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)


class Proposal(Wire):
    """The agreed results, None for a void one, and the checks they rest on (step 9). Voters recompute the outcome."""

    results: tuple[Digest | None, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)
    checks: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)


class Abstain(Wire):
    """A member's promise not to vote in this group any more."""

    attempt: Attempt


class NeedNote(Wire):
    """Asks for something of this group that has not arrived: a part or a result."""

    what: str = Field(max_length=8, pattern=r"^(part|result)$")
    group: Digest
    partition: Partition
    turn: Turn


class WardNote(Wire):
    """A peer's offer to the head that receives it: to bring its work on this base through that head (docs/adr/0011)."""

    fragment: FragmentIndex
    base: Digest
    boot: Nonce
    dialable: bool


class Ward(Wire):
    """A peer that asked a head, as the head lists it."""

    peer: PeerIdText
    boot: Nonce
    dialable: bool


class CellRoster(Wire):
    """The peers that bring their work to `leader`, as their head assigned them. Its digest names the cell.

    With `height` 2 every member but the leader leads a cell itself, and brings that cell's result.
    """

    leader: PeerIdText
    height: int = Field(ge=1, le=CELL_HEIGHT_MAX)
    wards: tuple[Ward, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)


class AgainNote(Wire):
    """Says that a cell's leader will reduce these partitions itself, as their results are missing or false."""

    group: Digest
    partitions: tuple[Partition, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)


class CellYield(Wire):
    """The contributors whose work one cell brings, with the work as they committed it.

    The cell's leader commits to this digest in the cell above or in the group, so a certificate covers all names.
    """

    contributors: tuple[Contributor, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)

    @cached_property
    def digest(self) -> bytes:
        return digest_of(b"muster-yield", self.to_wire())


class YieldNote(Wire):
    """The yield of a cell, then that of the cell to which its leader brought it; the last one is a head's."""

    group: Digest
    cells: tuple[CellYield, ...] = Field(min_length=1, max_length=CELL_HEIGHT_MAX)


class CertificateNote(Wire):
    """Says that a version exists; the certificate proves it."""

    certificate: Certificate

    @property
    def encoded_bytes(self) -> int:
        return 1 + self.certificate.encoded_bytes  # an array of one


class AskChainNote(Wire):
    """Asks for the certificates that follow those the asker holds; `known` are its newest digests, newest first."""

    fragment: FragmentIndex
    version: Count
    known: tuple[Digest, ...] = Field(max_length=LINEAGE_DEPTH_MAX + 1)


class ChainNote(Wire):
    """Consecutive certificates of one fragment, oldest first, after the newest one that both sides know.

    If both sides know none, `oldest` is the first version from which the sender can help.
    """

    fragment: FragmentIndex
    certificates: tuple[Certificate, ...] = Field(max_length=LINEAGE_DEPTH_MAX)
    oldest: Count | None = None

    @cached_property
    def encoded_bytes(self) -> int:
        """Length of the encoding. Many answers share the long certificates, each of which is measured only once."""
        bare = self.model_copy(update={"certificates": ()}).to_wire()
        count = 0 if len(self.certificates) <= COUNTED_IN_ONE_BYTE else 2  # further bytes of the array's header
        return len(bare) + count + sum(one.encoded_bytes for one in self.certificates)


class HeardNote(Wire):
    """What the sender heard about a version: for each slot, short digests of slot and statement (`Equivocations`)."""

    fragment: FragmentIndex
    version: Count
    heard: tuple[Digest, ...] = Field(max_length=HEARD_MAX)


class AskHeardNote(Wire):
    """Asks for the statements that the other peer heard in these slots; it sends them as they were signed."""

    fragment: FragmentIndex
    version: Count
    places: tuple[Nonce, ...] = Field(max_length=PLACES_ASKED_MAX)


class ConvictionsNote(Wire):
    """The keys that the sender holds evidence against, each with the evidence's digest."""

    convictions: tuple[Conviction, ...] = Field(max_length=CONVICTIONS_MAX)


class AskEvidenceNote(Wire):
    """Asks for one piece of evidence."""

    evidence: Digest


class EvidenceNote(Wire):
    """An encoded `coordinator.trust.evidence.Evidence`. If it proves nothing, we stop listening to its sender."""

    evidence: bytes = Field(max_length=MESSAGE_BYTES_MAX)


TrustNote = HeardNote | AskHeardNote | ConvictionsNote | AskEvidenceNote | EvidenceNote
CellNote = AgainNote | YieldNote
GroupNote = PartNote | NeedNote | OpenNote | OpeningNote
FragmentNote = AskChainNote | ChainNote | WardNote
Note = GroupNote | CellNote | FragmentNote | TrustNote | CertificateNote
Message = Statement | Note

BODY_BYTES_MAX: dict[str, int] = {
    "join": 1 << 10,
    "roster": 48 << 10,
    "commit": 28 << 10,  # those of a full group fit into one bundle
    "result": 64 << 10,
    "check": 3 << 9,  # those of a full group fit into a redo or a proposal; the longest has 1251
    "redo": 56 << 10,
    "proposal": 56 << 10,
    "refutation": 512 << 10,  # leaders forward each one alone
    "vote": VOTE_BODY_BYTES_MAX,
    "abstain": 1 << 8,
}
"""The longest encoded body of each kind. Members' bodies may hold unknown fields, but 32 must fit into a leader's.

A leader's longest statement still fits the room in which `coordinator.trust.equivocation` keeps it. The part of a
bundle that is not commitments is limited by `coordinator.trust.length_limits`.
"""

STATEMENT_BODIES: dict[str, type[Wire]] = {
    "join": Join,
    "roster": Roster,
    "commit": Commit,
    "bundle": Bundle,
    "result": Result,
    "check": Check,
    "refutation": Refutation,
    "redo": Redo,
    "proposal": Proposal,
    "abstain": Abstain,
    "cell": CellRoster,
}

SIGNED_BODIES: dict[str, type[Wire]] = {**STATEMENT_BODIES, "vote": Vote}
"""The bodies above, and votes, which `coordinator.chain.certificate` defines."""
