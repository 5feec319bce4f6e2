"""Many signed identities on a few real nodes of the DHT, with a clock that tests move by hand.

Each node has its own peer, with the product's whole presence loop, and houses many other peers. It signs and sends
their records like its own, and reads for all of them at once. The product's `PresenceShards` decides where each of
them writes and reads.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from coordinator.simulator.board import Board
from coordinator.wire.presence import Presence
from coordinator.wire.shards import PresenceShards, shard_of
from dht.addresses import PeerAddress
from dht.errors import NetworkError, PeerError
from dht.hivemind_storage import place_of
from dht.hivemind_store import HivemindStore
from dht.identity import Identity, PeerId
from dht.records import Record, RecordKey, presence_key
from dht.statement import digest_of
from dht.store import RecordWriter, StoredRecord
from dht.units import DAY_SECONDS
from peer.net.presence_loop import PresenceLoop, PresenceReaders
from tests.dht.eclipse import Clock

CALLS_AT_ONCE = 8
LIFETIME_SECONDS = 90.0


@dataclass(slots=True)
class Traffic:
    """Bytes of hivemind's calls that one node makes, by call."""

    sent: Counter[str] = field(default_factory=Counter)
    got: Counter[str] = field(default_factory=Counter)

    def count(self, protocol: Any) -> None:
        """Count all calls of this node from now on."""
        stub_of = protocol.get_stub
        protocol.get_stub = lambda peer: _Counted(stub_of(peer), self)

    @property
    def totals(self) -> tuple[int, int]:
        """Total bytes to others, and from others."""
        return self.sent.total(), self.got.total()


@dataclass(slots=True)
class _Counted:
    stub: Any
    traffic: Traffic

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.stub, name)

        async def counted(request: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - hivemind gives it
            self.traffic.sent[name] += request.ByteSize()
            answer = await call(request, timeout=timeout)
            self.traffic.got[name] += answer.ByteSize()
            return answer

        return counted


@dataclass(slots=True)
class Tenant:
    """A peer without its own node. `saw` maps each peer that it has found to the interval."""

    identity: Identity
    born: int  # the interval in which it arrived
    shards: PresenceShards = field(init=False)
    writer: RecordWriter = field(init=False)
    saw: dict[PeerId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shards = PresenceShards(self.me)
        self.writer = RecordWriter(self.identity)

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id


class HandClock(Clock):
    """A clock moved only by hand. It is a day ahead, because hivemind drops records expired by the real time."""

    def __init__(self) -> None:
        Clock.__init__(self)
        self.began = time.time() + DAY_SECONDS

    def __call__(self) -> float:
        return self.began + self.offset_seconds


class Noting:
    """A record store that notes which places are read and written."""

    def __init__(self, store: HivemindStore) -> None:
        self._store = store
        self.read: list[int] = []
        self.written: list[int] = []

    async def put(self, key: RecordKey, payload: bytes, lifetime_seconds: float) -> None:
        self.written.append(key.shard)
        await self._store.put(key, payload, lifetime_seconds)

    async def get(self, key: RecordKey) -> list[StoredRecord]:
        self.read.append(key.shard)
        return await self._store.get(key)

    async def close(self) -> None:
        """Do nothing: the node is closed with its network."""


@asynccontextmanager
async def no_deadline(_store: object, _what: str, _seconds: float = 0.0) -> AsyncIterator[None]:
    """Replace `HivemindStore._deadline` without a deadline, because time passes only by hand."""
    yield


class House:
    """One node with its own peer and the tenants that it houses."""

    def __init__(
        self, run_id: bytes, store: HivemindStore, owner: Identity, clock: Clock, address: PeerAddress
    ) -> None:
        self.address = address
        self.run_id, self.store, self.clock = run_id, store, clock
        self.owner = Tenant(owner, born=0)
        self.tenants: list[Tenant] = []
        self.traffic = Traffic()
        self.traffic.count(store._protocol)
        self.own_bytes: list[tuple[int, int]] = []  # of each look of the owner
        self.board_bytes: list[tuple[int, int]] = []  # the same, as the simulator counts it
        self.needed: frozenset[PeerId] = frozenset()
        self.look = 0
        self.records_kept = self.fullest_place = 0
        self._said: dict[bytes, Presence | None] = {}
        self.noted = Noting(store)
        self.loop = PresenceLoop(self.noted, store._daemon, run_id, self._ours, self._readers())
        self.owner.shards = self.loop.shards

    def _ours(self) -> Presence:
        """Return the owner's presence, with the address by which others can call it."""
        return presence_of(self.owner.me, self.look).model_copy(update={"addresses": (str(self.address),)})

    def _readers(self) -> PresenceReaders:
        return PresenceReaders(
            needed=lambda: self.needed,
            missing=lambda needed: self._missing(self.owner, needed),
            seen=lambda peer, _: self.owner.saw.__setitem__(peer, self.look),
            counted=lambda _: None,
        )

    def _missing(self, one: Tenant, needed: Collection[PeerId]) -> set[PeerId]:
        return {peer for peer in needed if one.saw.get(peer, -9) < self.look - 2} - {one.me}

    async def turn(self, look: int, needed: frozenset[PeerId], board: Board, drawn: int) -> None:
        """Let every peer of this house read presence once, and write its own."""
        self.look, self.needed = look, needed
        before = self.traffic.totals
        self.noted.read, self.noted.written = [], []
        await self.loop._once(LIFETIME_SECONDS)
        sent, got = self.traffic.totals
        self.own_bytes.append((sent - before[0], got - before[1]))
        put, read_bytes, now = board.bytes_put, board.bytes_got, self.clock()
        board.get(self.noted.read, now)
        board.put(self.owner.me, self._ours(), self.noted.written, now)
        self.board_bytes.append((board.bytes_put - put, board.bytes_got - read_bytes))
        wanted = {one.me: one.shards.read(self._missing(one, needed), drawn) for one in self.tenants}
        read = await self._read({place for places in wanted.values() for place in places})
        outbox: dict[int, list[Record]] = defaultdict(list)
        for one in self.tenants:
            self._find(one, {place: read[place] for place in wanted[one.me] if place in read})
            presence = presence_of(one.me, look).model_copy(update={"shard_depth": one.shards.said})
            ours, places = presence.to_wire(), one.shards.written(needed)
            board.put(one.me, presence, places, self.clock())
            for place in places:
                key = presence_key(self.run_id, place)
                outbox[place].append(one.writer.write(key, ours, LIFETIME_SECONDS, self.clock()))
        gate = asyncio.Semaphore(CALLS_AT_ONCE)
        await asyncio.gather(*(self._put(place, records, gate) for place, records in outbox.items()))

    def _find(self, one: Tenant, read: dict[int, list[StoredRecord]]) -> None:
        said = dict[PeerId, int | None]()
        for record in (record for records in read.values() for record in records):
            presence = self._presence(record.payload)
            if presence is not None and record.sender != one.me:
                said[record.sender] = presence.shard_depth
                one.saw[record.sender] = self.look
        one.shards.found({place: len(records) for place, records in read.items()}, said, self.needed)

    def _presence(self, payload: bytes) -> Presence | None:
        if payload not in self._said:
            try:
                self._said[payload] = Presence.from_wire(payload)
            except PeerError:
                self._said[payload] = None
        return self._said[payload]

    async def _read(self, places: Iterable[int]) -> dict[int, list[StoredRecord]]:
        self._said.clear()
        gate = asyncio.Semaphore(CALLS_AT_ONCE)

        found: dict[int, list[StoredRecord]] = {}

        async def one(place: int) -> None:
            async with gate:
                with suppress(NetworkError):  # as above
                    found[place] = await self.store.get(presence_key(self.run_id, place))

        await asyncio.gather(*map(one, sorted(places)))
        return found

    async def _put(self, place: int, records: list[Record], gate: asyncio.Semaphore) -> None:
        """Store records of many peers, as `HivemindStore.put` does for its own."""
        key, protocol = place_of(presence_key(self.run_id, place)), self.store._protocol
        values, expires = [one.value for one in records], [one.expires_unix_seconds for one in records]
        senders, keys = [one.sender for one in records], [key] * len(records)
        async with gate:
            with suppress(NetworkError):  # on a busy machine; the next turn puts it again, as any peer does
                await self.store._ask(
                    "store records", key, lambda peer: protocol.call_store(peer, keys, values, expires, senders)
                )
        for record in records:
            self.store._storage.table.put(key.to_bytes(), record, self.clock())

    @property
    def residents(self) -> list[Tenant]:
        return [self.owner, *self.tenants]

    def begin_to_count(self) -> None:
        """Begin the count of bytes anew."""
        self.own_bytes.clear()
        self.board_bytes.clear()

    def count_records(self) -> None:
        """Count the live records in this node's part of the DHT."""
        table = self.store._storage.table
        sizes = [len(table.get(place, self.clock())) for place in table.places()]
        self.records_kept, self.fullest_place = sum(sizes), max(sizes, default=0)


def presence_of(peer: PeerId, beat: int) -> Presence:
    """Return a presence as long as a real one, but without an address, because these peers cannot be called."""
    return Presence(
        boot=digest_of(b"boot", peer.encode())[:16],
        state="training",
        steps=beat,
        steps_per_second=1.0,
        tokens=beat,
        versions=(beat,),
        heads=(bytes(8),),
        addresses=(),
        beat=beat,
    )


def needs(reader: Tenant, other: Tenant, active: Collection[PeerId]) -> bool:
    """Whether one must find the other: all peers must find the active set, and neighbours each other."""
    depth = max(reader.shards.depth, other.shards.depth)
    return other.me in active or shard_of(reader.me, depth) == shard_of(other.me, depth)
