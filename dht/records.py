"""Records: small, signed, short-lived notes under a well-known key, one per peer and key (design §6.1, §10).

A record is a `Statement` whose context spells out its key. A peer that stores it can therefore check the key without
knowing it beforehand, and the record cannot be replayed under another one. Every key of the record store is made in
this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

from pydantic import Field

from dht.admission import PASS_BYTES_MAX
from dht.errors import PeerError
from dht.identity import PeerId, Signer
from dht.statement import Context, Statement, digest_of, make_statement
from dht.wire import PROTOCOL_MAJOR, Wire

RECORD_BYTES_MAX = 4096  # hivemind hangs on values near 64 KiB, and storage is other people's memory
LIFETIME_SECONDS_MAX = 3600
SHARDS_MAX = 4096


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Limits of one kind of record on what it costs the peers that store it."""

    payload_bytes_max: int
    lifetime_seconds_max: int


RECORD_KINDS: Mapping[str, RecordLimits] = MappingProxyType(
    {
        "presence": RecordLimits(payload_bytes_max=3072, lifetime_seconds_max=300),
        "evidence": RecordLimits(payload_bytes_max=512, lifetime_seconds_max=LIFETIME_SECONDS_MAX),
    }
)


@dataclass(frozen=True)
class RecordKey:
    """The key under which records of one kind are stored. Made by the functions below."""

    run_id: bytes
    kind: str
    fragment: int = 0
    shard: int = 0

    @cached_property
    def text(self) -> str:
        """The key as the record store hashes it."""
        return f"muster/{PROTOCOL_MAJOR}/{self.run_id.hex()}/{self.kind}/{self.fragment}/{self.shard}"

    @cached_property
    def context(self) -> Context:
        """The only context in which a record under this key may be signed; its group is a digest of the whole key."""
        group = digest_of(b"muster-record", self.text.encode())
        return Context(run_id=self.run_id, kind=self.kind, fragment=self.fragment, version=self.shard, group=group)


def presence_key(run_id: bytes, shard: int = 0) -> RecordKey:
    """Return the key of presence records. Large swarms spread them over shards (design §10)."""
    return RecordKey(run_id, "presence", shard=shard)


def evidence_key(run_id: bytes) -> RecordKey:
    """Return the key of the records that name convicted keys and their evidence, which itself travels by request."""
    return RecordKey(run_id, "evidence")


class RecordBody(Wire):
    """The signed body of a record. Its lifetime is in milliseconds so that every reader computes the same expiry."""

    OMITS_NONE: ClassVar[bool] = True

    payload: bytes = Field(max_length=RECORD_BYTES_MAX)
    issued_unix_milliseconds: int = Field(ge=0, le=2**53)
    lifetime_milliseconds: int = Field(gt=0, le=LIFETIME_SECONDS_MAX * 1000)
    work: int = Field(0, ge=0, lt=2**63)  # unused; a field that was once sent stays
    admission: bytes | None = Field(None, max_length=PASS_BYTES_MAX)  # the sender's `Pass`, if the run asks for one


@dataclass(frozen=True)
class Record:
    """A decoded record; says nothing about its signature (see `dht.validation`)."""

    key: RecordKey
    sender: PeerId
    body: RecordBody
    statement: Statement
    value: bytes

    @property
    def issued_unix_seconds(self) -> float:
        return self.body.issued_unix_milliseconds / 1000

    @property
    def expires_unix_seconds(self) -> float:
        """The moment from which the record must not be used."""
        return (self.body.issued_unix_milliseconds + self.body.lifetime_milliseconds) / 1000


def make_record(signer: Signer, key: RecordKey, body: RecordBody) -> Record:
    """Sign `body` for `key`; raises ValueError if it is over the limits of its kind."""
    limits = RECORD_KINDS[key.kind]
    if len(body.payload) > limits.payload_bytes_max:
        raise ValueError(f"a {key.kind} payload has at most {limits.payload_bytes_max} bytes, not {len(body.payload)}")
    if body.lifetime_milliseconds > limits.lifetime_seconds_max * 1000:
        raise ValueError(f"a {key.kind} record lives at most {limits.lifetime_seconds_max} seconds")
    statement = make_statement(signer, key.context, body)
    return Record(key, signer.peer_id, body, statement, statement.to_wire())


def parse_record(value: bytes) -> Record:
    """Decode a stored value; raises PeerError if it is not a record."""
    statement = Statement.from_wire(value, RECORD_BYTES_MAX)
    context = statement.context
    if context.kind not in RECORD_KINDS:
        raise PeerError(f"{context.kind} is no kind of record")
    if context.version >= SHARDS_MAX:
        raise PeerError(f"shard {context.version} is over the limit of {SHARDS_MAX}")
    key = RecordKey(context.run_id, context.kind, context.fragment, context.version)
    return Record(key, PeerId(statement.sender), statement.read(RecordBody), statement, value)
