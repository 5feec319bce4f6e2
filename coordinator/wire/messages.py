"""What peers say to each other in a round (design §6.2), in the order in which it is said.

Statements are signed bodies in a context (`dht.statement`). Notes are unsigned: requests, and things that prove
themselves (certificates) or are proven by somebody's signed commitment (parts). Tensor bytes travel beside a message
as its payload and are named by their Merkle root.
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
SEGMENTS_MAX = 1 << 14
COEFFICIENTS_MAX = 1 << 12  # with the norms of as many segments as a commitment can name they fit into a result
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
    """«I hold this base and want to take part.» Goes to the first leaders in order; its context's group is the base."""

    OMITS_NONE: ClassVar[bool] = True

    attempt: Attempt
    leader: PeerIdText
    boot: Nonce
    dialable: bool
    contributes: bool  # False for a witness: it votes, but brings no outer gradient
    expires_unix_seconds: Count
    networks: tuple[Network, ...] = Field((), max_length=NETWORKS_MAX)  # public ones from which it calls
    admission: bytes | None = Field(None, max_length=PASS_BYTES_MAX)  # a `Pass`, where the run asks for one


class Roster(Wire):
    """The leader's list of members, about the base in its context. Its digest names the roster in later contexts."""

    attempt: Attempt
    revision: int = Field(ge=0, le=8)
    joins: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    convictions: tuple[Conviction, ...] = Field(
        (), max_length=CONVICTIONS_MAX
    )  # why some of the active set are not in it
    voids: Attempt | None = None  # void groups that the leader was in: all members double the deadline as often


class Commit(Wire):
    """A member's contribution, fixed before anybody sees anybody else's (step 4)."""

    OMITS_NONE: ClassVar[bool] = True

    tokens: Count
    steps: Count
    window_first: Count
    window_count: Count
    codec: str = Field(max_length=16)
    part_roots: tuple[Digest, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)
    squared_norms: tuple[SquaredNorm, ...] = Field(max_length=SEGMENTS_MAX)
    nonce_hashes: tuple[Digest, ...] = Field(min_length=2, max_length=2)
    probation: bool = False  # the contribution has no weight; said here, so that evidence needs no chain to tell
    cell: Digest | None = None  # of the `CellYield` that it brings; None: its own work

    @property
    def tokens_counted(self) -> int:
        """What gives the contribution its weight, and is credited."""
        return 0 if self.probation else self.tokens


class Bundle(Wire):
    """All commitments of a round, signed by the leader: the input set. Its digest names the group from here on.

    `members`: how many the group would have if nobody of the active set were missing, so that what weighs how much can
    be told from here alone (docs/adr/0046).
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

    `coefficients`: one α per included member, segment after segment; none if the rule has none or they are too many.
    Everybody measures the bytes: nothing follows from the norms and the error that are told here (docs/adr/0038).
    """

    partition: Partition
    turn: Turn
    root: Digest
    included: tuple[MemberIndex, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    coefficients: tuple[float, ...] = Field(max_length=COEFFICIENTS_MAX)
    squared_norms: tuple[float, ...] = Field(max_length=SEGMENTS_MAX)
    encoding_error: float = Field(ge=0)


class Check(Wire):
    """What a member holds and what it misses (step 8): digests of result statements, which cover their roots.

    `phase` 1 answers a redo. Of partitions that it holds, a member says in which its committed input was left out
    (`dropped`), of which it could not convince itself (`doubts`), and about which it has sent a refutation (`accused`).
    """

    phase: Turn
    results: tuple[Digest | None, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)
    complaints: tuple[Partition, ...] = Field(max_length=PARTITIONS_MAX)
    nonce: Nonce | None
    dropped: tuple[Partition, ...] = Field((), max_length=PARTITIONS_MAX)
    doubts: tuple[Partition, ...] = Field((), max_length=PARTITIONS_MAX)
    accused: tuple[Partition, ...] = Field((), max_length=PARTITIONS_MAX)


class Redo(Wire):
    """The leader has these partitions reduced once more, by other reducers."""

    partitions: tuple[Partition, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)
    checks: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)


class Proposal(Wire):
    """The agreed results (None: void) and the checks they rest on (step 9). Voters recompute the outcome."""

    results: tuple[Digest | None, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)
    checks: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)


class Abstain(Wire):
    """«I will not vote in this group any more.»"""

    attempt: Attempt


class NeedNote(Wire):
    """Asks for something of this group that has not arrived: a part or a result."""

    what: str = Field(max_length=8, pattern=r"^(part|result)$")
    group: Digest
    partition: Partition
    turn: Turn


class Ward(Wire):
    """«I hold this base and bring my work through this head.» Its context's group names both (docs/adr/0011)."""

    boot: Nonce
    dialable: bool


class CellRoster(Wire):
    """Who brings its work to `leader`, as their head has dealt them out. Its digest names the cell.

    With `height` 2 every member but the leader leads a cell itself, and brings what that has come to.
    """

    leader: PeerIdText
    height: int = Field(ge=1, le=CELL_HEIGHT_MAX)
    wards: tuple[Statement, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)


class AgainNote(Wire):
    """The leader of a cell reduces these partitions itself: their results are missing or false."""

    group: Digest
    partitions: tuple[Partition, ...] = Field(min_length=1, max_length=PARTITIONS_MAX)


class CellYield(Wire):
    """Whose work is in what one cell brings, as its members committed it.

    Its leader commits to its digest in the cell above or the group, so a certificate stands for the names of all.
    """

    contributors: tuple[Contributor, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)

    @cached_property
    def digest(self) -> bytes:
        return digest_of(b"muster-yield", self.to_wire())


class YieldNote(Wire):
    """What this cell brings, then what the cell does into which its leader brought that; the last one is a head's."""

    group: Digest
    cells: tuple[CellYield, ...] = Field(min_length=1, max_length=CELL_HEIGHT_MAX)


class CertificateNote(Wire):
    """«This version exists.» Proves itself."""

    certificate: Certificate

    @property
    def encoded_bytes(self) -> int:
        return 1 + self.certificate.encoded_bytes  # an array of one


class AskChainNote(Wire):
    """Asks for the certificates that follow what the asker holds; `known` are its newest digests, newest first."""

    fragment: FragmentIndex
    version: Count
    known: tuple[Digest, ...] = Field(max_length=LINEAGE_DEPTH_MAX + 1)


class ChainNote(Wire):
    """Consecutive certificates of one fragment, oldest first, after the newest one that both sides know.

    Where there is none, `oldest` is the version from which on the sender could have helped.
    """

    fragment: FragmentIndex
    certificates: tuple[Certificate, ...] = Field(max_length=LINEAGE_DEPTH_MAX)
    oldest: Count | None = None

    @cached_property
    def encoded_bytes(self) -> int:
        """Of very many answers with the same certificates, which are most of them, each is measured once."""
        bare = self.model_copy(update={"certificates": ()}).to_wire()
        count = 0 if len(self.certificates) <= COUNTED_IN_ONE_BYTE else 2  # bytes more, before an array
        return len(bare) + count + sum(one.encoded_bytes for one in self.certificates)


class HeardNote(Wire):
    """What the sender heard about a version: for each place, short digests of place and statement (`Equivocations`)."""

    fragment: FragmentIndex
    version: Count
    heard: tuple[Digest, ...] = Field(max_length=HEARD_MAX)


class AskHeardNote(Wire):
    """Asks for the statements that the other heard in these places; they come as they were signed."""

    fragment: FragmentIndex
    version: Count
    places: tuple[Nonce, ...] = Field(max_length=PLACES_ASKED_MAX)


class ConvictionsNote(Wire):
    """Keys of which the sender holds evidence, each with its digest."""

    convictions: tuple[Conviction, ...] = Field(max_length=CONVICTIONS_MAX)


class AskEvidenceNote(Wire):
    """Asks for one piece of evidence."""

    evidence: Digest


class EvidenceNote(Wire):
    """An encoded `coordinator.trust.evidence.Evidence`. Proves itself; costs its sender our ear if it does not."""

    evidence: bytes = Field(max_length=MESSAGE_BYTES_MAX)


TrustNote = HeardNote | AskHeardNote | ConvictionsNote | AskEvidenceNote | EvidenceNote
CellNote = AgainNote | YieldNote
Note = PartNote | NeedNote | OpenNote | OpeningNote | CertificateNote | AskChainNote | ChainNote | TrustNote | CellNote
Message = Statement | Note

BODY_BYTES_MAX: dict[str, int] = {
    "join": 1 << 10,
    "roster": 48 << 10,
    "ward": 1 << 10,
    "commit": 28 << 10,  # a full group's fit into one bundle
    "result": 64 << 10,
    "check": 3 << 9,  # a full group's fit into a redo or a proposal; the longest has 1251
    "redo": 56 << 10,
    "proposal": 56 << 10,
    "refutation": 512 << 10,  # one at a time: leaders hand it on alone
    "vote": VOTE_BODY_BYTES_MAX,
    "abstain": 1 << 8,
}
"""What members say may hold fields that we do not know, but must still fit, 32 times, into what leaders say.

What leaders say is no longer than what is kept of it; of a bundle `coordinator.trust.length_limits` bounds what is
not commitments.
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
    "ward": Ward,
    "cell": CellRoster,
}

SIGNED_BODIES: dict[str, type[Wire]] = {**STATEMENT_BODIES, "vote": Vote}
"""With the votes, whose bodies certificates define."""
