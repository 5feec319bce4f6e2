"""Events for the protocol core: messages, presence, the learner's progress, and answers to its actions."""

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
    """A message from an authenticated sender. `payload_root` is the root computed from the bytes that came with it."""

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
    """The public network from which each connected peer calls us (`dht.addresses.network_of`)."""

    networks: Mapping[PeerId, bytes]


@dataclass(frozen=True, slots=True)
class ReachSeen:
    """Whether calls of other peers reach us, as they report it."""

    dialable: bool


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The transport lost this peer. A hint about timing only."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Progress:
    """The learner has made `steps` inner steps in total, recently at `steps_per_second`.

    Fewer steps than before: another process goes on from a save, and the steps since are lost.
    """

    steps: int
    steps_per_second: float


@dataclass(frozen=True, slots=True)
class Encoded:
    """The answer to `Encode`. `steps` is 0 if nothing was trained since the last counted snapshot."""

    key: RoundKey
    tokens: int
    steps: int
    window_first: int
    window_count: int
    part_roots: tuple[bytes, ...]
    squared_norms: tuple[float, ...]
    cell: bytes | None = None  # the claim (`CellInput.claim`) if this is the work of a cell


@dataclass(frozen=True, slots=True)
class Reduced:
    """The answer to `Reduce`; `root` is None if too few inputs were admissible."""

    key: RoundKey
    partition: int
    turn: int
    root: bytes | None
    included: tuple[int, ...]
    coefficients: tuple[float, ...] = ()
    squared_norms: tuple[float, ...] = ()
    encoding_error: float = 0.0
    garbage: tuple[tuple[int, OpenedLeaf], ...] = ()  # members whose committed bytes do not decode, and a leaf as proof


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to `Open`; `note` is None if the bytes are gone."""

    key: RoundKey
    to: PeerId
    note: OpeningNote | None


class Finding(StrEnum):
    """The outcome of inspecting a result."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"  # a leaf recomputes to other bytes: an exact proof
    DOUBTFUL = "doubtful"  # estimates with a tolerance disagree, which proves nothing
    UNOPENED = "unopened"  # the opened leaves are incomplete, or differ from the commitment


@dataclass(frozen=True, slots=True)
class Inspected:
    """The answer to `Inspect`; with a `refutation` if the finding is REFUTED."""

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
    """The answer to `Apply`: the digest of the state after the outer step."""

    key: RoundKey
    state: bytes


@dataclass(frozen=True, slots=True)
class VoteRecorded:
    """The vote of this round is on disk, or could not be written (`written` is False)."""

    key: RoundKey
    written: bool = True


@dataclass(frozen=True, slots=True)
class StateFetched:
    """The state of this version is here, and its hash matches the certificate."""

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
Seen = Progress | OriginsSeen | ReachSeen  # news about ourselves, for our next messages
Event = Received | PresenceSeen | PeerGone | Seen | Answer | StateFetched | FetchFailed | Tick
