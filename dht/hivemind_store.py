"""The record store over hivemind's Kademlia DHT, run inside our own event loop (no forked DHT process).

hivemind routes and carries; what is stored, believed and merged is ours (`dht.hivemind_storage`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from random import SystemRandom
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError

from dht.addresses import PeerAddress
from dht.allowance import StrangersShare
from dht.answer_guard import guard_answers
from dht.daemon.process import Daemon
from dht.errors import NetworkError, UsageError
from dht.guard import CallGuard, guard_handlers, node_id_of
from dht.hivemind_storage import SignedRecordValidator, TableStorage, place_of
from dht.identity import PeerId, Signer
from dht.invite_reach import silence
from dht.meeting import GRACE_SECONDS, any_answers
from dht.records import Record, RecordKey, parse_record
from dht.refusal import ADVICE
from dht.store import RecordWriter, StoredRecord, stored
from dht.table import ENTRIES_PER_KEY_MAX, RecordTable
from dht.validation import RecordRules, check_time

REPLICAS = 5
ACQUAINTANCES = 3  # told and asked besides: replicas may all be keys that somebody mined to lie there
BEAM_NODES = 10  # nodes asked on the way to the nearest; hivemind's 20 doubles the traffic and finds the same
CALL_SECONDS_MAX = 3.0
OPERATION_SECONDS_MAX = 10.0
PATIENCE_SECONDS = 4.0  # with the nearest, if acquaintances answer: liars there may answer late on purpose
BOOTSTRAP_SECONDS_MAX = 15.0
CLOSE_SECONDS_MAX = 2.0
PROBED_PEERS_MAX = 3
SOUGHT_PEERS_MAX = 3  # lost ones, at each probe
# hivemind doubles this time for ever: it would avoid the other side of a partition for as long as that has lasted
AVOIDED_SECONDS = 10.0
FOUND_SECONDS = 30.0  # for which whoever a search has found is asked again
PLACES_KEPT = 64

Clock = Callable[[], float]
Call = Callable[[Any], Awaitable[Any]]  # of a peer, by hivemind's id; None if it does not answer


@dataclass(frozen=True, slots=True)
class _Found:
    peers: Sequence[Any]
    met: Sequence[Any]  # whom we had met nearest to the place by then
    until_seconds: float


class FoundPeers:
    """Whom searches have found, by the place that they were for.

    A search asks as many peers as the read or write that it is made for. So whoever it has found is asked again for a
    while, unless we have met somebody nearer since, or one of them does not answer.
    """

    def __init__(self) -> None:
        self._found: dict[Any, _Found] = {}

    def known(self, place: Any, met: Sequence[Any], now_seconds: float) -> Sequence[Any] | None:
        """Whom to ask; None if it takes a search. `met` are those nearest to the place that we have met."""
        found = self._found.get(place)
        if found is None or found.met != met or now_seconds >= found.until_seconds:
            return None
        return found.peers

    def keep(self, place: Any, peers: Sequence[Any], met: Sequence[Any], now_seconds: float) -> None:
        """A search has found these."""
        self._found.pop(place, None)
        self._found[place] = _Found(peers, met, now_seconds + FOUND_SECONDS)
        if len(self._found) > PLACES_KEPT:
            del self._found[next(iter(self._found))]

    def forget(self, place: Any) -> None:
        """One of them does not answer."""
        self._found.pop(place, None)

    def clear(self) -> None:
        """Forget all: we are about to be elsewhere."""
        self._found.clear()


class HivemindStore:
    """This peer's part of the DHT; see `RecordStore` for the contract."""

    def __init__(self, daemon: Daemon, signer: Signer, rules: RecordRules, clock: Clock) -> None:
        self._daemon = daemon
        self._peer_id = signer.peer_id
        self._door = daemon.door
        self._shown = self._door.show(signer.peer_id)
        self._writer = RecordWriter(signer, self._shown)
        self._validator = SignedRecordValidator(rules)
        self._storage = TableStorage(clock, self._door)
        self._guard = CallGuard(self._door, daemon.answers)
        self._clock = clock
        self._joined: Any = None
        self._searches = count()
        self._found = FoundPeers()
        self._traversing: set[asyncio.Future[Any]] = set()

    @classmethod
    async def start(cls, daemon: Daemon, signer: Signer, rules: RecordRules, clock: Clock) -> HivemindStore:
        """Join the DHT over `daemon`; raises NetworkError if it has initial peers and none of them answers.

        Raises UsageError if they do not let us in.
        """
        store = cls(daemon, signer, rules, clock)
        try:
            await store.rebuild()
        except NetworkError:
            await store.close()
            if daemon.door.told is None:
                raise
            raise UsageError(ADVICE[daemon.door.told]) from None
        except BaseException:
            await store.close()
            raise
        return store

    def share(self, strangers: StrangersShare) -> None:
        """What those whom we do not know may have of us, with whatever else they are given."""
        self._daemon.answers.strangers = strangers

    @property
    def answered_bytes(self) -> int:
        """Sent in answer to others' calls."""
        return self._daemon.answers.sent_bytes

    async def put(self, key: RecordKey, payload: bytes, lifetime_seconds: float) -> None:
        record = self._writer.write(key, payload, lifetime_seconds, self._clock())
        place = place_of(key)
        expires = record.expires_unix_seconds
        answers = await self._ask(
            "store a record",
            place,
            lambda peer: self._protocol.call_store(peer, [place], [record.value], [expires], [self._peer_id]),
        )
        self._storage.table.put(place.to_bytes(), record, self._clock())
        if answers and not any(answer and answer[0] for answer in answers):
            raise NetworkError(why_refused(expires, self._clock()))

    async def get(self, key: RecordKey) -> list[StoredRecord]:
        place = place_of(key)
        answers = await self._ask("read records", place, lambda peer: self._protocol.call_find(peer, [place]))
        merged = RecordTable()
        now = self._clock()
        for record in self._storage.table.get(place.to_bytes(), now):
            merged.put(b"", record, now)
        for record in _records_in(answers, place):
            # signature, key and subkey: hivemind asked our validator before it returned the answer
            if check_time(record, now) is None and not self._door.refusal(record.sender, record.body.admission or b""):
                merged.put(b"", record, now)
        return [stored(record) for record in merged.get(b"", now)[:ENTRIES_PER_KEY_MAX]]

    async def probe(self) -> None:
        """One real round trip: to a peer if any is known, else to our own daemon; raises NetworkError if it fails."""
        async with self._deadline("reach a peer"):
            # grows by every peer that has ever failed to answer, and with a backoff rate of 1 decides nothing
            self._node.blacklist.ban_counter.clear()
            table = self._protocol.routing_table
            known = [peer for _, peer in table.get_nearest_neighbors(self._node.node_id, PROBED_PEERS_MAX)]
            if not known or not any(await asyncio.gather(*(self._protocol.call_ping(peer) for peer in known))):
                await self._bootstrap()
                await self._daemon.visible_addresses()
        await self._seek_lost()

    async def rebuild(self) -> None:
        """Join anew over the daemon as it is now, keeping what is stored here; raises as `start` does."""
        await self._leave()
        async with self._deadline("join the network", BOOTSTRAP_SECONDS_MAX):
            self._joined = await DHTNode.create(
                p2p=self._daemon.p2p,
                node_id=node_id_of(self._peer_id),
                num_replicas=REPLICAS,
                wait_timeout=CALL_SECONDS_MAX,
                cache_locally=False,
                cache_nearest=0,
                cache_on_store=False,
                cache_refresh_before_expiry=0,
                blacklist_time=AVOIDED_SECONDS,
                backoff_rate=1.0,
                reuse_get_requests=False,
                client_mode=self._daemon.client_only,
                record_validator=self._validator,
            )
            # one storage for both: with a separate cache, one late record put there would hide everybody else's
            self._protocol.storage = self._protocol.cache = self._storage
            guard_handlers(
                self._daemon.p2p._client.control.unary_handlers, self._guard, asyncio.get_running_loop().time
            )
            guard_answers(self._protocol, self._shown)
            await self._bootstrap()

    async def close(self) -> None:
        await self._leave()

    @property
    def _node(self) -> Any:
        if self._joined is None:
            raise NetworkError("this peer has not joined the network, or has left it")
        return self._joined

    @property
    def _protocol(self) -> Any:
        return self._node.protocol

    @asynccontextmanager
    async def _deadline(self, what: str, seconds: float = OPERATION_SECONDS_MAX) -> AsyncIterator[None]:
        """hivemind waits for ever on a daemon that has died; nobody here does."""
        if not self._daemon.alive:
            raise NetworkError(f"could not {what}: the libp2p daemon has died")
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise NetworkError(f"could not {what} within {seconds:g} seconds") from None

    async def _bootstrap(self) -> None:
        """Meet the peers we know of and, through them, our neighbours.

        Raises NetworkError if none answers; but a peer that was given nobody to call may be alone.
        """
        if not await any_answers(self._meet(address) for address in self._daemon.bootstrap_peers):
            if self._daemon.initial_peers:
                raise NetworkError(silence(self._daemon.initial_peers))
            return
        await find_nearest(self._node, self._node.node_id, self._traversing)

    async def _seek_lost(self) -> None:
        """Call some peers that we once knew and that nobody leads us to: after a partition, neither side is led over.

        One call that comes through is enough, since searches then go through its caller.
        """
        table = self._protocol.routing_table
        lost = [one for one in self._daemon.bootstrap_peers if PeerID.from_base58(one.peer_id) not in table]
        start = SOUGHT_PEERS_MAX * next(self._searches) % max(1, len(lost))
        with suppress(NetworkError):  # they may be gone for good
            async with self._deadline("meet a lost peer"):
                await asyncio.gather(*map(self._meet, (lost[start:] + lost[:start])[:SOUGHT_PEERS_MAX]))

    async def _meet(self, address: PeerAddress) -> bool:
        connected = False
        with suppress(NetworkError):  # it may be connected by another address, or find its own way to us
            await self._daemon.dial(address)
            connected = True
        if connected and self._shown and not await self._daemon.knock(address.peer_id):
            return False  # it refuses us, or it takes connections and is too busy, or frozen, for anything else
        met = await self._protocol.call_ping(PeerID.from_base58(address.peer_id), validate=True, strict=False)
        if met is None and connected and not self._shown:
            await self._daemon.knock(address.peer_id)  # which says why
        return met is not None

    async def _ask(self, what: str, place: Any, call: Call) -> list[Any]:
        """What those who are responsible for a place say, and a few acquaintances; nothing if we are alone.

        Raises NetworkError if there are peers and nobody answers.
        """
        tasks: list[asyncio.Future[Any]] = []
        try:
            async with self._deadline(what):
                nearest = asyncio.ensure_future(self._ask_nearest(place, call))
                others = [asyncio.ensure_future(self._reach(one, call)) for one in self._acquaintances(place)]
                tasks += [nearest, *others]
                await asyncio.wait([nearest], timeout=PATIENCE_SECONDS if others else None)
                if others:
                    await asyncio.wait(others, timeout=GRACE_SECONDS)
                heard = [answer for other in others if other.done() and (answer := other.result()) is not None]
                if not heard or (nearest.done() and nearest.exception() is None):
                    heard += await nearest
                return heard
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_nearest(self, place: Any, call: Call) -> list[Any]:
        peers = await self._nearest(place)
        heard = [answer for answer in await asyncio.gather(*map(call, peers)) if answer is not None]
        if len(heard) < len(peers):
            self._found.forget(place)
        if peers and not heard:
            raise NetworkError("no other peer answers")
        return heard

    def _acquaintances(self, place: Any) -> list[PeerAddress]:
        """Some that are not asked anyway, as far as we know without a search."""
        asked = {PeerId(peer.to_base58()) for _, peer in self._met(place)} | {self._peer_id}
        return acquaintances(self._daemon.initial_peers, self._daemon.bootstrap_peers, asked)

    async def _reach(self, address: PeerAddress, call: Call) -> Any:
        with suppress(NetworkError):  # it may be connected by another address, or find its own way to us
            await self._daemon.dial(address)
        return await call(PeerID.from_base58(address.peer_id))

    async def _nearest(self, place: Any) -> Sequence[Any]:
        """hivemind ids of the peers responsible for a place; none if we are alone. Raises NetworkError."""
        now = asyncio.get_running_loop().time()
        if (known := self._found.known(place, self._met(place), now)) is not None:
            return known
        peers = await self._search(place)
        if peers:
            self._found.keep(place, peers, self._met(place), now)
        return peers

    def _met(self, place: Any) -> list[Any]:
        """Node and peer ids of the nearest to a place in our own table."""
        return list(self._protocol.routing_table.get_nearest_neighbors(place, REPLICAS))

    async def _search(self, place: Any) -> list[Any]:
        """As `_nearest`."""
        beside = DHTID(place ^ 1)  # nothing lies there: who is asked the way to a place itself sends all its records
        for attempt in range(2):
            peers = await find_nearest(self._node, beside, self._traversing)
            if peers or attempt:
                break
            await self._bootstrap()
        if not peers and self._met(place):
            raise NetworkError("no other peer answers")  # hivemind avoids for a while peers that have just not answered
        return peers

    async def _leave(self) -> None:
        node, self._joined = self._joined, None
        self._found.clear()
        if node is not None and self._daemon.serves(node.p2p):
            with suppress(P2PDaemonError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await node.shutdown()


async def find_nearest(node: Any, place: Any, running: set[asyncio.Future[Any]]) -> list[Any]:
    """hivemind's search, which goes on if it is given up: cancelled, it leaves a task of each of its workers behind."""
    search = asyncio.ensure_future(
        node.find_nearest_nodes([place], k_nearest=REPLICAS, beam_size=BEAM_NODES, exclude_self=True)
    )
    running.add(search)
    search.add_done_callback(running.discard)
    return list((await asyncio.shield(search))[place].values())


def acquaintances(
    invited: Iterable[PeerAddress], known: Iterable[PeerAddress], without: Set[PeerId]
) -> list[PeerAddress]:
    """An address each of a few peers that we know anyway, drawn so that nobody foresees it: first of who invited us.

    Keys cost nothing, so that all who are responsible for a place may be one attacker's (docs/adr/0048).
    """
    first, others = (
        {one.peer_id: one for one in SystemRandom().sample(usable, len(usable))}
        for usable in ([one for one in group if one.peer_id not in without] for group in (invited, known))
    )
    drawn = dict([*list(first.items())[:1], *others.items()])
    return list(drawn.values())[:ACQUAINTANCES]


def why_refused(expires_unix_seconds: float, now_unix_seconds: float) -> str:
    """Why others, who answered, did not take a record of ours that is in order."""
    if now_unix_seconds >= expires_unix_seconds:
        return "no other peer took the record: it had expired on its way; this machine or its network is too busy"
    return "no other peer took the record; is this machine's clock right, and its key used by no other machine?"


def _records_in(answers: Sequence[Any], place: Any) -> list[Record]:
    """The records in what peers answered, if they did; what several hold is read once."""
    found = [answer[place][0] for answer in answers if answer]
    values = [value for one in found if one is not None for _, (value, _) in one.value.items()]
    return [parse_record(value) for value in dict.fromkeys(values)]
