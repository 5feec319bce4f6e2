"""The record store over hivemind's Kademlia DHT, run inside our own event loop (no forked DHT process).

hivemind routes and carries records. Storing, checking and merging them is our own code (`dht.hivemind_storage`).
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
from dht.invite_reach import no_answer_message
from dht.meeting import GRACE_SECONDS, any_answers
from dht.records import Record, RecordKey, parse_record
from dht.refusal import ADVICE
from dht.store import RecordWriter, StoredRecord, stored
from dht.table import ENTRIES_PER_KEY_MAX, RecordTable
from dht.validation import RecordRules, check_time

REPLICAS = 5
ACQUAINTANCES = 3  # also written to and asked: the replicas may all be keys that an attacker mined to lie there
BEAM_NODES = 10  # nodes asked on the way to the nearest; hivemind's 20 doubles the traffic and finds the same
CALL_SECONDS_MAX = 3.0
OPERATION_SECONDS_MAX = 10.0
PATIENCE_SECONDS = 4.0  # for the nearest, if acquaintances answer: liars among them may answer late on purpose
BOOTSTRAP_SECONDS_MAX = 15.0
CLOSE_SECONDS_MAX = 2.0
PROBED_PEERS_MAX = 3
SOUGHT_PEERS_MAX = 3  # of the lost ones, at each probe
# hivemind would double this time without end, and avoid the other side of a partition for as long as that had lasted
AVOIDED_SECONDS = 10.0
FOUND_SECONDS = 30.0  # how long the peers that a search found are asked again
PLACES_KEPT = 64

Clock = Callable[[], float]
Call = Callable[[Any], Awaitable[Any]]  # of a peer, given hivemind's id of it; None if it does not answer


@dataclass(frozen=True, slots=True)
class _Found:
    peers: Sequence[Any]
    met: Sequence[Any]  # the nearest peers to the place in our own table at the time
    until_seconds: float


class FoundPeers:
    """The peers that searches have found, by the place searched for.

    A search asks as many peers as the read or write that it serves. So the peers it found are asked again for a while,
    unless our own table has changed near the place since, or one of them does not answer.
    """

    def __init__(self) -> None:
        self._found: dict[Any, _Found] = {}

    def known(self, place: Any, met: Sequence[Any], now_seconds: float) -> Sequence[Any] | None:
        """Return the peers to ask, None if it takes a search. `met` are the nearest to the place in our own table."""
        found = self._found.get(place)
        if found is None or found.met != met or now_seconds >= found.until_seconds:
            return None
        return found.peers

    def keep(self, place: Any, peers: Sequence[Any], met: Sequence[Any], now_seconds: float) -> None:
        """Keep the peers that a search has found for a place."""
        self._found.pop(place, None)
        self._found[place] = _Found(peers, met, now_seconds + FOUND_SECONDS)
        if len(self._found) > PLACES_KEPT:
            del self._found[next(iter(self._found))]

    def forget(self, place: Any) -> None:
        """Forget the peers of a place, one of which does not answer."""
        self._found.pop(place, None)

    def clear(self) -> None:
        """Forget all peers, since we leave the network or join it anew."""
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
        """Charge answers to strangers to this share, which also covers what else they are given."""
        self._daemon.answers.strangers = strangers

    @property
    def answered_bytes(self) -> int:
        """Bytes sent in answer to others' calls."""
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
        """Make one real round trip, to a peer if any is known, else to our own daemon.

        Raises NetworkError if it fails.
        """
        async with self._deadline("reach a peer"):
            # it grows by every peer that has ever failed to answer, and with a backoff rate of 1 it has no effect
            self._node.blacklist.ban_counter.clear()
            table = self._protocol.routing_table
            known = [peer for _, peer in table.get_nearest_neighbors(self._node.node_id, PROBED_PEERS_MAX)]
            if not known or not any(await asyncio.gather(*(self._protocol.call_ping(peer) for peer in known))):
                await self._bootstrap()
                await self._daemon.visible_addresses()
        await self._seek_lost()

    async def rebuild(self) -> None:
        """Rejoin over the current daemon, keeping the records stored here; raises NetworkError."""
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
            # one storage for both: with a separate cache, one late record put there would hide all others
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
        """Limit the time of a call, since hivemind waits for ever on a dead daemon; raises NetworkError."""
        if not self._daemon.alive:
            raise NetworkError(f"could not {what}: the libp2p daemon has died")
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise NetworkError(f"could not {what} within {seconds:g} seconds") from None

    async def _bootstrap(self) -> None:
        """Meet the peers we know of and, through them, our neighbours.

        Raises NetworkError if none answers, unless we were given no initial peers: then we may rightly be alone.
        """
        if not await any_answers(self._meet(address) for address in self._daemon.bootstrap_peers):
            if self._daemon.initial_peers:
                raise NetworkError(no_answer_message(self._daemon.initial_peers))
            return
        await find_nearest(self._node, self._node.node_id, self._traversing)

    async def _seek_lost(self) -> None:
        """Call some remembered peers that no search finds: after a partition, searches stay on their own side.

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
            return False  # it refuses us, or it accepts connections but is too busy or frozen to answer
        met = await self._protocol.call_ping(PeerID.from_base58(address.peer_id), validate=True, strict=False)
        if met is None and connected and not self._shown:
            await self._daemon.knock(address.peer_id)  # to be told why
        return met is not None

    async def _ask(self, what: str, place: Any, call: Call) -> list[Any]:
        """Return the answers of the peers responsible for a place and of a few acquaintances; empty if we are alone.

        Raises NetworkError if there are peers but none answers.
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
        """Return addresses of some peers that will not be asked anyway, judged by our own table."""
        asked = {PeerId(peer.to_base58()) for _, peer in self._met(place)} | {self._peer_id}
        return acquaintances(self._daemon.initial_peers, self._daemon.bootstrap_peers, asked)

    async def _reach(self, address: PeerAddress, call: Call) -> Any:
        with suppress(NetworkError):  # it may be connected by another address, or find its own way to us
            await self._daemon.dial(address)
        return await call(PeerID.from_base58(address.peer_id))

    async def _nearest(self, place: Any) -> Sequence[Any]:
        """Return hivemind's ids of the peers responsible for a place; empty if we are alone. Raises NetworkError."""
        now = asyncio.get_running_loop().time()
        if (known := self._found.known(place, self._met(place), now)) is not None:
            return known
        peers = await self._search(place)
        if peers:
            self._found.keep(place, peers, self._met(place), now)
        return peers

    def _met(self, place: Any) -> list[Any]:
        """Return the node and peer ids of the peers nearest to a place in our own table."""
        return list(self._protocol.routing_table.get_nearest_neighbors(place, REPLICAS))

    async def _search(self, place: Any) -> list[Any]:
        """Search the DHT for the peers responsible for a place; returns and raises as `_nearest`."""
        beside = DHTID(place ^ 1)  # nothing is stored there: a peer asked for the place itself sends all its records
        for attempt in range(2):
            peers = await find_nearest(self._node, beside, self._traversing)
            if peers or attempt:
                break
            await self._bootstrap()
        if not peers and self._met(place):
            raise NetworkError("no other peer answers")  # for a while, hivemind avoids peers that did not answer
        return peers

    async def _leave(self) -> None:
        node, self._joined = self._joined, None
        self._found.clear()
        if node is not None and self._daemon.serves(node.p2p):
            with suppress(P2PDaemonError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await node.shutdown()


async def find_nearest(node: Any, place: Any, running: set[asyncio.Future[Any]]) -> list[Any]:
    """Run hivemind's search, which goes on if the caller is cancelled.

    A cancelled search would leave a task of each of its workers behind.
    """
    search = asyncio.ensure_future(
        node.find_nearest_nodes([place], k_nearest=REPLICAS, beam_size=BEAM_NODES, exclude_self=True)
    )
    running.add(search)
    search.add_done_callback(running.discard)
    return list((await asyncio.shield(search))[place].values())


def acquaintances(
    invited: Iterable[PeerAddress], known: Iterable[PeerAddress], without: Set[PeerId]
) -> list[PeerAddress]:
    """Return one address each of a few known peers, drawn unpredictably; the first invited us, if possible.

    Keys cost nothing, so all peers responsible for a place may be one attacker's (docs/adr/0048).
    """
    first, others = (
        {one.peer_id: one for one in SystemRandom().sample(usable, len(usable))}
        for usable in ([one for one in group if one.peer_id not in without] for group in (invited, known))
    )
    drawn = dict([*list(first.items())[:1], *others.items()])
    return list(drawn.values())[:ACQUAINTANCES]


def why_refused(expires_unix_seconds: float, now_unix_seconds: float) -> str:
    """Explain why peers that answered did not take a valid record of ours."""
    if now_unix_seconds >= expires_unix_seconds:
        return "no other peer took the record: it had expired on its way; this machine or its network is too busy"
    return "no other peer took the record; is this machine's clock right, and its key used by no other machine?"


def _records_in(answers: Sequence[Any], place: Any) -> list[Record]:
    """Return the records in the peers' answers; one that several peers hold is decoded once."""
    found = [answer[place][0] for answer in answers if answer]
    values = [value for one in found if one is not None for _, (value, _) in one.value.items()]
    return [parse_record(value) for value in dict.fromkeys(values)]
