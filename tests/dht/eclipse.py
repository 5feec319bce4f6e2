"""Nodes of hivemind's DHT on loopback, and hostile ones whose keys were mined to lie nearest to a record key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID

from dht.addresses import PeerAddress
from dht.daemon.process import Daemon, DaemonConfig
from dht.door import Door
from dht.guard import REQUESTS, node_id_of
from dht.hivemind_storage import TableStorage
from dht.hivemind_store import HivemindStore
from dht.identity import Identity, PeerId
from dht.records import RecordKey
from dht.statement import digest_of
from dht.validation import RecordRules

STARTED_AT_ONCE = 4


class Clock:
    """Real time, which hivemind reads too, moved forward by hand."""

    def __init__(self) -> None:
        self.offset_seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset_seconds


class Swallowing(TableStorage):
    """Says that it keeps what it is given, and has nothing."""

    def store_subkey(self, key: Any, subkey: object, value: bytes, expiration_time: float) -> bool:
        return True

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Nothing to hand over."""
        return iter(())


class Stale(Swallowing):
    """Says that it keeps what it is given, and has the first that it got of each peer."""

    def store_subkey(self, key: Any, subkey: object, value: bytes, expiration_time: float) -> bool:
        if all(held.sender != subkey for held in self.table.get(key.to_bytes(), 0.0)):
            TableStorage.store_subkey(self, key, subkey, value, expiration_time)
        return True


def keys(name: str, count_wanted: int) -> list[Identity]:
    """So many, the same each time."""
    return [Identity(digest_of(name.encode(), number.to_bytes(8, "big"))) for number in range(count_wanted)]


def mined_keys(wanted: int, key: RecordKey, honest: Sequence[Identity]) -> tuple[list[Identity], int]:
    """So many keys that lie nearer to a record key than every honest one, and how many were made for that."""
    found: list[Identity] = []
    for made in count():
        if len(found) == wanted:
            return found, made
        one = Identity(digest_of(b"mined", made.to_bytes(8, "big")))
        if lies_nearest(one, key, honest):
            found.append(one)
    raise AssertionError("there is always another key")


def lies_nearest(one: Identity, key: RecordKey, others: Sequence[Identity]) -> bool:
    """Whether this node lies nearer to a record key than all others."""
    place = DHTID.generate(source=key.text)
    own, *distances = place.xor_distance([node_id_of(node.peer_id) for node in (one, *others)])
    return bool(own < min(distances))


class Nodes:
    """Record stores over real nodes, started into one network and stopped together."""

    def __init__(
        self, folder: Path, rules: RecordRules, clock: Clock, show: Callable[[PeerId], bytes] = lambda _: b""
    ) -> None:
        """`show` gives the pass of a node, where the network asks for one."""
        self._door = Door(show)
        self._folder = folder
        self._rules = rules
        self._clock = clock
        self._stack = AsyncExitStack()

    async def close(self) -> None:
        await self._stack.aclose()

    async def start(self, identity: Identity, *invited_by: PeerAddress) -> HivemindStore:
        """An honest node that calls these first."""
        daemon = await self._daemon(identity, invited_by)
        store = await HivemindStore.start(daemon, identity, self._rules, self._clock)
        self._stack.push_async_callback(store.close)
        return store

    async def start_hostile(
        self, identities: Sequence[Identity], victims: Sequence[PeerAddress]
    ) -> list[HivemindStore]:
        """Nodes that have called each of these honest ones, and swallow records."""
        gate = asyncio.Semaphore(STARTED_AT_ONCE)

        async def one(identity: Identity) -> HivemindStore:
            async with gate:
                store = HivemindStore(await self._daemon(identity, ()), identity, self._rules, self._clock)
                await store.rebuild()
                self._stack.push_async_callback(store.close)
                behave(store, Swallowing(self._clock))
                await asyncio.gather(*map(store._meet, victims))
                return store

        return await asyncio.gather(*map(one, identities))

    async def _daemon(self, identity: Identity, invited_by: Sequence[PeerAddress]) -> Daemon:
        path = self._folder / identity.peer_id
        identity.save(path)
        daemon = await Daemon.start(DaemonConfig(path, runtime_parent=self._folder, door=self._door))
        # not before: it would ask over another daemon whether its key is in use
        invited = tuple(invited_by)
        daemon._config = DaemonConfig(path, initial_peers=invited, runtime_parent=self._folder, door=self._door)
        self._stack.push_async_callback(daemon.close)
        return daemon


async def address_of(store: HivemindStore) -> PeerAddress:
    """Where others may call a node."""
    return (await store._daemon.visible_addresses())[0]


def behave(hostile: HivemindStore, storage: TableStorage, friends: Sequence[PeerId] = ()) -> None:
    """Have a node answer out of this storage, and name only its friends as neighbours, if it has any."""
    protocol = hostile._protocol
    protocol.storage = protocol.cache = hostile._storage = storage
    vars(protocol.routing_table).pop("get_nearest_neighbors", None)
    if friends:
        protocol.routing_table.get_nearest_neighbors = _only(friends)


def delay(hostile: HivemindStore, seconds: float) -> None:
    """Have a node answer so late from now on."""
    handlers = hostile._daemon.p2p._client.control.unary_handlers
    for name in REQUESTS.keys() & handlers.keys():
        handlers[name] = _late(handlers[name], seconds)


def _late(handle: Any, seconds: float) -> Any:
    async def late(request: bytes, caller: Any) -> Any:
        await asyncio.sleep(seconds)
        return await handle(request, caller)

    return late


def _only(friends: Sequence[PeerId]) -> Callable[..., list[tuple[Any, Any]]]:
    known = [(node_id_of(one), PeerID.from_base58(one)) for one in friends]

    def nearest(query: Any, k: int, exclude: Any = None) -> list[tuple[Any, Any]]:
        others = [one for one in known if one[0] != exclude]
        return sorted(others, key=lambda one: query.xor_distance(one[0]))[:k]

    return nearest
