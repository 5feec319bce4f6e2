"""What happens to the protocol core: messages, presence, the learner's progress, and answers to its actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from coordinator.core.actions import RoundKey
from coordinator.trust.evidence import OpenedLeaf
from coordinator.wire.messages import Message
from coordinator.wire.openings import OpeningNote, Refutation
from coordinator.wire.presence import Presence
from dht.identity import PeerId


@dataclass(frozen=True, slots=True)
class Received:
    """A message from an authenticated sender. `payload_root` is what the bytes beside it really hash to."""

    sender: PeerId
    message: Message
    payload_root: bytes | None = None


@dataclass(frozen=True, slots=True)
class PresenceSeen:
    """A valid presence record was read."""

    peer: PeerId
    presence: Presence


@dataclass(frozen=True, slots=True)
class OriginsSeen:
    """The public networks from which those call to whom we are connected now (`dht.addresses.network_of`)."""

    networks: Mapping[PeerId, bytes]


@dataclass(frozen=True, slots=True)
class ReachSeen:
    """Whether others get through when they call us, as far as they tell."""

    dialable: bool


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The transport lost this peer. A hint about timing only."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Progress:
    """The learner has made `steps` inner steps in all, at `steps_per_second` lately."""

    steps: int
    steps_per_second: float


@dataclass(frozen=True, slots=True)
class Encoded:
    """The answer to `Encode`. `steps` is 0 where nothing was trained since the last counted snapshot."""

    key: RoundKey
    tokens: int
    steps: int
    window_first: int
    window_count: int
    part_roots: tuple[bytes, ...]
    squared_norms: tuple[float, ...]
    cell: bytes | None = None  # whose work it is, if it is that of a cell (`CellInput.claim`)


@dataclass(frozen=True, slots=True)
class Reduced:
    """The answer to `Reduce`; `root` is None where too few inputs were admissible."""

    key: RoundKey
    partition: int
    turn: int
    root: bytes | None
    included: tuple[int, ...]
    coefficients: tuple[float, ...] = ()
    squared_norms: tuple[float, ...] = ()
    encoding_error: float = 0.0
    garbage: tuple[tuple[int, OpenedLeaf], ...] = ()  # members whose committed bytes do not decode, and what shows it


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to `Open`; without a note where bytes are gone."""

    key: RoundKey
    to: PeerId
    note: OpeningNote | None


class Finding(StrEnum):
    """What looking into a result comes to."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"  # a leaf recomputes to other bytes: exact, and proven
    DOUBTFUL = "doubtful"  # by estimates with a tolerance, which prove nothing
    UNOPENED = "unopened"  # what was opened is incomplete, or not what was committed


@dataclass(frozen=True, slots=True)
class Inspected:
    """The answer to `Inspect`; `refutation` if that is the finding."""

    key: RoundKey
    accuser: PeerId
    partition: int
    turn: int
    result: bytes
    finding: Finding
    refutation: Refutation | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to `Apply`: digest of the state the outer step leads to."""

    key: RoundKey
    state: bytes


@dataclass(frozen=True, slots=True)
class VoteRecorded:
    """The vote of this round is on disk, or the disk does not take it."""

    key: RoundKey
    written: bool = True


@dataclass(frozen=True, slots=True)
class StateFetched:
    """The state of this version is here and hashes to what its certificate says."""

    fragment: int
    digest: bytes  # of the certificate


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """None of the holders gave the state."""

    fragment: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Answer = Encoded | Reduced | Opened | Inspected | Applied | VoteRecorded
Seen = Progress | OriginsSeen | ReachSeen  # how things are with us, for what we say next
Event = Received | PresenceSeen | PeerGone | Seen | Answer | StateFetched | FetchFailed | Tick
