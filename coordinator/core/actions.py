"""What the protocol core asks its shell to do, and what it lets it know. Plain values.

The shell answers with `coordinator.core.events`. Code acts on `VersionCertified` and `RoundVoided`; a `Tell` is for
people, and no decision follows from it.
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
    """One roster of one attempt: the name under which the shell keeps what belongs to it."""

    fragment: int
    version: int
    roster_id: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; `payload` names tensor bytes by their root, to go along."""

    to: PeerId
    message: Message
    payload: bytes | None = None


@dataclass(frozen=True, slots=True)
class Encode:
    """Snapshot the fragment at the learner's next step boundary and encode its outer gradient. → `Encoded`

    With `merged`, encode instead what that step would apply: what a cell brings (docs/adr/0011). `expected`: how many
    the group would have if nobody were missing; weights follow from it, so who replays the round has to know.
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
    inputs: tuple[ReduceInput, ...]  # with weights as they are claimed
    inputs_min: int  # with fewer admissible ones the partition is void
    members: int  # of the group, if nobody were missing

    def weighed(self, admitted: Collection[int]) -> tuple[ReduceInput, ...]:
        """The admissible inputs, weighted for a sum of just these."""
        return weighed(self.inputs, admitted, self.members)


@dataclass(frozen=True, slots=True)
class Open:
    """Open the leaves that `seed` draws for one of `voters`, in these inputs of a partition. → `Opened`

    `members`: of the group, each of whom may have an input that is opened; in a cell one of them is a voter.
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
    """Recompute leaves of a result: those that `seed` draws, or `leaf`, from opened inputs. → `Inspected`

    With `whole` all leaves, from inputs that are in the store.
    """

    key: RoundKey
    accuser: PeerId  # who asks for it: ourselves, or whose refutation this is
    partition: int
    partitions: int
    turn: int
    voters: int
    members: int
    result: bytes  # digest of the reducer's statement
    root: bytes
    coefficients: tuple[float, ...]
    inputs: tuple[ReduceInput, ...]  # the included ones, in order
    opened: tuple[OpenedInput, ...]  # of inputs that are not here, whose bytes are in the store
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
    inputs: tuple[ReduceInput, ...]  # the whole input set, with weights as they are claimed; `root` unused
    members: int  # of the group, if nobody were missing

    def weighed(self, merged: Collection[int]) -> tuple[ReduceInput, ...]:
        """The inputs that some results include, weighted for a sum of just these."""
        return weighed(self.inputs, merged, self.members)


@dataclass(frozen=True, slots=True)
class RecordVote:
    """Write this vote to disk before it is sent. → `VoteRecorded`"""

    record: VoteRecord


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """What a voter must remember across a crash (design §6.2 step 9)."""

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
    """The version holds nothing of ours: what we made since the one before goes on top of it."""


@dataclass(frozen=True, slots=True)
class Included:
    """The version holds our snapshot of this round: what we made after it goes on top."""

    snapshot: RoundKey
    counted: tuple[bool, ...]  # per partition: were we included


@dataclass(frozen=True, slots=True)
class IncludedUnseen:
    """The version holds work of ours and we have no snapshot of it: nothing that we hold may count a second time."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The state before was of a branch that we leave; it held this work of ours, which is ours to bring again."""

    steps: int
    tokens: int


OwnPart = NotIncluded | Included | IncludedUnseen | Returned
"""What of our own work a version holds; exactly one of these is true of every version."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make a certified state the anchor and bring the learner along at its next step boundary (step 10)."""

    certificate: Certificate
    applied: RoundKey | None  # the round whose applied state this is; None: the fetched state
    ours: OwnPart = NotIncluded()
    frozen: tuple[bool, ...] = ()  # per partition: void

    @property
    def snapshot(self) -> RoundKey | None:
        """The round whose snapshot of ours is in it."""
        return self.ours.snapshot if isinstance(self.ours, Included) else None


@dataclass(frozen=True, slots=True)
class FetchState:
    """Get anchor and momentum of a certified version from one of `holders`. → `StateFetched` or `FetchFailed`"""

    certificate: Certificate
    holders: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """This round is over: snapshots, parts, results and applied state of `key` may go."""

    key: RoundKey


@dataclass(frozen=True, slots=True)
class KeepEvidence:
    """Write this evidence to disk, and its head to the record store, so that others find out about the ban."""

    ban: Ban


@dataclass(frozen=True, slots=True)
class VersionCertified:
    """The chain of a fragment has moved on to this version, ours or others'."""

    certificate: Certificate


@dataclass(frozen=True, slots=True)
class RoundVoided:
    """Our attempt at the version after this one came to nothing."""

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
