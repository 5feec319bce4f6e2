"""Messages as frame headers: one byte that names the kind, then the canonical encoding."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coordinator.chain.certificate import Certificate, Count
from coordinator.chain.lineage import CHAIN_PAGE_MAX
from coordinator.run.manifest import FRAGMENTS_MAX, MANIFEST_BYTES_MAX
from coordinator.wire.messages import (
    AgainNote,
    AskChainNote,
    AskEvidenceNote,
    AskHeardNote,
    CertificateNote,
    ChainNote,
    ConvictionsNote,
    EvidenceNote,
    FragmentIndex,
    HeardNote,
    Message,
    NeedNote,
    PartNote,
    WardNote,
    YieldNote,
)
from coordinator.wire.openings import OpeningNote, OpenNote
from dht.errors import PeerError
from dht.statement import Digest, Statement
from dht.wire import Wire

STATE_PIECE_BYTES_MAX = 4 << 20
PIECES_MAX = 1 << 20
STATUS_BYTES_MAX = 64 << 10

PieceIndex = Annotated[int, Field(ge=0, lt=PIECES_MAX)] | None


class StateAsk(Wire):
    """Asks for one piece of a certified state (anchor, then momentum, as little-endian float32).

    A piece is one leaf of the state's Merkle trees. Without an index, this asks for all leaf digests. Indices beyond
    both halves are pieces of the outer step from the version before (`peer.numerics.outer_step.step_bytes`).

    A base model that peers serve is asked for in the same way, by the root of its file (`peer.sync.base_file`).
    """

    fragment: FragmentIndex
    certificate: Digest
    piece: PieceIndex


class StatePiece(Wire):
    """Answers StateAsk; the payload is the piece, empty if the sender does not hold that state (any more)."""

    fragment: FragmentIndex
    certificate: Digest
    piece: PieceIndex


class ManifestAsk(Wire):
    """Asks for the run's manifest, for which the newcomer has only the hash."""


class ManifestAnswer(Wire):
    """Answers ManifestAsk; proven by its hash."""

    manifest: bytes = Field(max_length=MANIFEST_BYTES_MAX)


class StatusAsk(Wire):
    """Asks a peer for its public status."""


class StatusAnswer(Wire):
    """Answers StatusAsk with JSON (`peer.rounds.public_status.PublicStatus`); all of it is the sender's claim."""

    status: bytes = Field(max_length=STATUS_BYTES_MAX)


class ProbeAsk(Wire):
    """Asks how our connection looks from the other end; with a port, also whether a call to it gets through.

    The payload is measured, not read.
    """

    ticket: int = Field(ge=0, lt=1 << 32)
    port: int | None = Field(None, ge=1, le=65535)


class ProbeAnswer(Wire):
    """Answers ProbeAsk; all of it is the sender's claim. `reachable` is None if the sender did not try."""

    ticket: int = Field(ge=0, lt=1 << 32)
    unix_milliseconds: int = Field(ge=0, le=2**53)
    seen_host: str = Field("", max_length=64)
    reachable: bool | None = None


class HeadsAsk(Wire):
    """Asks for the heads behind a hash in an invite: the digests of one version of all fragments."""

    version: Count
    digest: Digest


class HeadsAnswer(Wire):
    """Answers HeadsAsk, by fragment; proven by the hash. Empty if the sender does not keep that version."""

    digest: Digest
    heads: tuple[Digest, ...] = Field(max_length=FRAGMENTS_MAX)


class TailAsk(Wire):
    """Asks for the certificates that determine the active set at a version, `head`."""

    fragment: FragmentIndex
    version: Count
    head: Digest


class TailAnswer(Wire):
    """Answers TailAsk, oldest first; empty if the sender does not keep them."""

    fragment: FragmentIndex
    head: Digest
    certificates: tuple[Certificate, ...] = Field(max_length=CHAIN_PAGE_MAX)


Transfer = (
    StateAsk
    | StatePiece
    | ManifestAsk
    | ManifestAnswer
    | StatusAsk
    | StatusAnswer
    | ProbeAsk
    | ProbeAnswer
    | HeadsAsk
    | HeadsAnswer
    | TailAsk
    | TailAnswer
)

# Position is the wire's kind byte: append only.
_KINDS: tuple[type[Message | Transfer], ...] = (
    Statement,
    PartNote,
    NeedNote,
    CertificateNote,
    AskChainNote,
    ChainNote,
    StateAsk,
    StatePiece,
    ManifestAsk,
    ManifestAnswer,
    StatusAsk,
    StatusAnswer,
    OpenNote,
    OpeningNote,
    ProbeAsk,
    ProbeAnswer,
    HeardNote,
    AskHeardNote,
    ConvictionsNote,
    AskEvidenceNote,
    EvidenceNote,
    HeadsAsk,
    HeadsAnswer,
    TailAsk,
    TailAnswer,
    AgainNote,
    YieldNote,
    WardNote,
)


def encode_header(message: Message | Transfer) -> bytes:
    """Return the header of the frame that carries this message."""
    return bytes([_KINDS.index(type(message))]) + message.to_wire()


def decode_header(header: bytes) -> Message | Transfer:
    """Decode the result of `encode_header`; raises PeerError on anything else."""
    if not header or header[0] >= len(_KINDS):
        raise PeerError("a message of a kind that this version does not know")
    return _KINDS[header[0]].from_wire(header[1:])
