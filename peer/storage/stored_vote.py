"""The encoding of votes on disk, where each is written before it is sent (design §6.2 step 9)."""

from __future__ import annotations

from pydantic import Field

from coordinator.core.actions import VoteRecord
from coordinator.run.manifest import FRAGMENTS_MAX, PEERS_PER_GROUP_MAX
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Digest, PeerIdText
from dht.wire import Wire


class StoredVote(Wire):
    """A `VoteRecord` in canonical encoding."""

    fragment: int = Field(ge=0, lt=FRAGMENTS_MAX)
    version: int = Field(ge=0)
    parent: Digest
    attempt: int = Field(ge=0)
    roster_id: Digest
    roster: tuple[PeerIdText, ...] = Field(max_length=PEERS_PER_GROUP_MAX)
    outcome: Digest
    state: Digest


def encode_vote(record: VoteRecord) -> bytes:
    """Return the bytes to append to the vote log."""
    return StoredVote(
        fragment=record.fragment,
        version=record.version,
        parent=record.parent,
        attempt=record.attempt,
        roster_id=record.roster_id,
        roster=record.roster,
        outcome=record.outcome,
        state=record.state,
    ).to_wire()


def decode_vote(data: bytes) -> VoteRecord | None:
    """Decode the result of `encode_vote`; None for an entry that this version cannot read."""
    try:
        vote = StoredVote.from_wire(data)
    except PeerError:
        return None
    return VoteRecord(
        vote.fragment,
        vote.version,
        vote.parent,
        vote.attempt,
        vote.roster_id,
        tuple(PeerId(peer) for peer in vote.roster),
        vote.outcome,
        vote.state,
    )
