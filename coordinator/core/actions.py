"""Requests and notices of the protocol core to its shell. Plain values.

The shell answers with `coordinator.core.events`. Code acts on `VersionCertified` and `RoundVoided`. A `Tell` is for
people only: no code decides by it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.trust.bans import Ban
from coordinator.wire.inputs import ReduceInput, weighed
from coordinator.wire.messages import Message
from coordinator.wire.openings import OpenedInput
from dht.identity import PeerId


@dataclass(frozen=True, slots=True)
class RoundKey:
    """One roster of one attempt: the key under which the shell stores all data of that round."""

    fragment: int
    version: int
    roster_id: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; `payload` is the root of the tensor bytes to send with it."""

    to: PeerId
    message: Message
    payload: bytes | None = None


@dataclass(frozen=True, slots=True)
class Encode:
    """Snapshot the fragment at the learner's next step boundary and encode its outer gradient. → `Encoded`

    With `merged`, encode the update that this step would apply instead: a cell's contribution (docs/adr/0011).
    `expected` is the group's size if nobody were missing. Weights depend on it, so a replay of the round needs it.
    """

    key: RoundKey
    partitions: int
    merged: Apply | None = None
    expected: int = 0


@dataclass(frozen=True, slots=True)
class Reduce:
    """Merge one partition. → `Reduced`"""

    key: RoundKey
    partition: int
    partitions: int
    turn: int
    inputs: tuple[ReduceInput, ...]  # with their claimed weights
    inputs_min: int  # with fewer admissible inputs the partition is void
    members: int  # size of the group if nobody were missing

    def weighed(self, admitted: Collection[int]) -> tuple[ReduceInput, ...]:
        """Return the admissible inputs with weights for a sum of just these."""
        return weighed(self.inputs, admitted, self.members)


@dataclass(frozen=True, slots=True)
class Open:
    """Open the leaves that `seed` draws for one of `voters` voters, in these inputs of a partition. → `Opened`

    `members` is the number of members, each of which may have an input to open. In a cell only one of them is a voter.
    """

    key: RoundKey
    to: PeerId
    partition: int
    partitions: int
    turn: int
    seed: bytes
    voters: int
    members: int
    inputs: tuple[ReduceInput, ...]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Recompute leaves of a result from opened inputs: the leaves that `seed` draws, or `leaf`. → `Inspected`

    With `whole`, recompute all leaves from inputs in the store.
    """

    key: RoundKey
    accuser: PeerId  # the peer that asks for it: ourselves, or the author of a refutation
    partition: int
    partitions: int
    turn: int
    voters: int
    members: int
    result: bytes  # digest of the reducer's statement
    root: bytes
    coefficients: tuple[float, ...]
    inputs: tuple[ReduceInput, ...]  # the included inputs, in order
    opened: tuple[OpenedInput, ...]  # opened leaves of inputs that we do not have whole; their bytes are in the store
    seed: bytes = b""
    leaf: int | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """A merged partition as every member applies it."""

    root: bytes
    included: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Take the outer step on the side, without touching the learner. → `Applied`"""

    key: RoundKey
    results: tuple[PartitionResult | None, ...]
    inputs: tuple[ReduceInput, ...]  # the whole input set with its claimed weights; `root` is unused
    members: int  # size of the group if nobody were missing

    def weighed(self, merged: Collection[int]) -> tuple[ReduceInput, ...]:
        """Return the inputs that some result includes, with weights for a sum of just these."""
        return weighed(self.inputs, merged, self.members)


@dataclass(frozen=True, slots=True)
class RecordVote:
    """Write this vote to disk before it is sent. → `VoteRecorded`"""

    record: VoteRecord


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """A vote as the voter must remember it across a crash (design §6.2 step 9)."""

    fragment: int
    version: int
    parent: bytes
    attempt: int
    roster_id: bytes
    roster: tuple[PeerId, ...]
    outcome: bytes
    state: bytes


@dataclass(frozen=True, slots=True)
class NotIncluded:
    """The version holds none of our work: our steps since the previous version go on top of it."""


@dataclass(frozen=True, slots=True)
class Included:
    """The version holds our snapshot of this round: our steps after the snapshot go on top of it."""

    snapshot: RoundKey
    counted: tuple[bool, ...]  # per partition: whether our input was included


@dataclass(frozen=True, slots=True)
class IncludedUnseen:
    """The version holds work of ours without a snapshot here: none of our steps until now may count a second time."""


@dataclass(frozen=True, slots=True)
class Returned:
    """We leave the branch of our previous state; it held this much of our work, which we may contribute again."""

    steps: int
    tokens: int


OwnPart = NotIncluded | Included | IncludedUnseen | Returned
"""How much of our own work a version holds; exactly one of these is true of every version."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make a certified state the anchor and bring the learner along at its next step boundary (step 10)."""

    certificate: Certificate
    applied: RoundKey | None  # the round whose applied state to adopt; None: the fetched state
    ours: OwnPart = NotIncluded()
    frozen: tuple[bool, ...] = ()  # per partition: whether it is void

    @property
    def snapshot(self) -> RoundKey | None:
        """The round whose snapshot of our work the version holds, if any."""
        return self.ours.snapshot if isinstance(self.ours, Included) else None


@dataclass(frozen=True, slots=True)
class FetchState:
    """Get anchor and momentum of a certified version from one of `holders`. → `StateFetched` or `FetchFailed`"""

    certificate: Certificate
    holders: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """This round is over: the shell may delete snapshots, parts, results and applied state of `key`."""

    key: RoundKey


@dataclass(frozen=True, slots=True)
class KeepEvidence:
    """Write this evidence to disk, and its head to the record store, so that other peers learn of the ban."""

    ban: Ban


@dataclass(frozen=True, slots=True)
class VersionCertified:
    """The chain of a fragment has moved on to this version, made with us or without us."""

    certificate: Certificate


@dataclass(frozen=True, slots=True)
class RoundVoided:
    """Our attempt at the version after `version` failed."""

    fragment: int
    version: int
    reason: str  # in words


@dataclass(frozen=True, slots=True)
class Tell:
    """Something worth a line on the event tape, for people to read."""

    event: str
    fragment: int
    version: int
    details: dict[str, object] = field(default_factory=dict)


Action = (
    Send
    | Encode
    | Reduce
    | Open
    | Inspect
    | Apply
    | RecordVote
    | Adopt
    | FetchState
    | Discard
    | KeepEvidence
    | VersionCertified
    | RoundVoided
    | Tell
)
