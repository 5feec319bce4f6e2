"""Publishes our presence, and reads who else is present (design §6.1)."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from coordinator.wire.presence import Presence
from coordinator.wire.shards import PresenceShards
from dht.addresses import PeerAddress, could_be_of
from dht.daemon.dns_names import Names
from dht.daemon.own_hosts import hosts_behind
from dht.daemon.process import Daemon
from dht.errors import NetworkError, PeerError, UsageError
from dht.identity import PeerId
from dht.records import presence_key
from dht.statement import digest_of
from dht.store import RecordStore, StoredRecord
from peer.machine.timed_wait import pause

log = structlog.get_logger(__name__)

RANDOM = secrets.SystemRandom()

CLAIMANTS_MAX = 4  # peers for which one host and port is called: only one of them can be there
CLAIM_SECONDS = 60  # interval after which other claimants are drawn
EAGER_SECONDS = 0.5  # between the first looks
EAGER_SHARE = 0.25  # interval as a share of the time since the start, up to the usual interval


@dataclass(frozen=True, slots=True)
class PresenceReaders:
    """The presence records that a peer needs, and the callbacks that take them.

    `needed` returns the active sets; `missing`, those members of them that are not live. `seen` takes a peer's record.
    `counted` takes the estimated number of peers, or 1 if all records were read.
    """

    needed: Callable[[], frozenset[PeerId]]
    missing: Callable[[frozenset[PeerId]], frozenset[PeerId]]
    seen: Callable[[PeerId, Presence], None]
    counted: Callable[[float], None]


class PresenceLoop:
    """Publishes our presence and passes on the records of other peers, until cancelled."""

    def __init__(
        self,
        store: RecordStore,
        daemon: Daemon,
        run_id: bytes,
        ours: Callable[[], Presence],
        readers: PresenceReaders,
    ) -> None:
        self._store = store
        self._daemon = daemon
        self._run_id = run_id
        self._ours = ours
        self._readers = readers
        self.shards = PresenceShards(daemon.peer_id)
        self._changed = asyncio.Event()
        self.rounds = 0  # completed reads of the record store

    def hurry(self) -> None:
        """Publish now instead of at the next interval, because our state has changed."""
        self._changed.set()

    async def run(self, interval_seconds: float, lifetime_seconds: float) -> None:
        """Look and publish at growing intervals, until cancelled.

        The first ones are short, so that peers that start together find each other at once. With a lifetime of a
        minute, two looks a second throughout would be most of what a start costs.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            self._changed.clear()
            await self._once(lifetime_seconds)
            seconds = max(EAGER_SECONDS, EAGER_SHARE * (loop.time() - began))
            await pause(min(seconds, interval_seconds), self._changed)

    async def _once(self, lifetime_seconds: float) -> None:
        """Read who is present, then publish our record where others read; each also when the other fails."""
        needed = self._readers.needed()
        try:
            await self._look(needed)
        except NetworkError as error:
            log.info("presence_not_read", reason=str(error))
        ours = self._ours().model_copy(update={"shard_depth": self.shards.said}).fitting().to_wire()
        try:
            for place in self.shards.written(needed):
                await self._store.put(presence_key(self._run_id, place), ours, lifetime_seconds)
        except NetworkError as error:
            log.info("presence_not_told", reason=str(error))

    async def _look(self, needed: frozenset[PeerId]) -> None:
        """Read the records of other peers and pass them on; raises NetworkError."""
        places = self.shards.read(self._readers.missing(needed), secrets.randbits(32))
        read = await read_places(self._store, self._run_id, places)
        found = await presences(distinct(read), self._daemon, await self._daemon.hosts())
        said = {record.sender: presence.shard_depth for record, presence in found}
        self.shards.found({place: len(records) for place, records in read.items()}, said, needed)
        RANDOM.shuffle(found)  # a peer that is behind asks the first one ahead that it sees: not always the same one
        for record, presence in found:
            self._readers.seen(record.sender, presence)
        self._readers.counted(self.shards.everybody)
        self.rounds += 1


async def read_places(store: RecordStore, run_id: bytes, places: Sequence[int]) -> dict[int, list[StoredRecord]]:
    """Return the records at each place; raises NetworkError if no other peer answers about one of them."""
    read = await asyncio.gather(*(store.get(presence_key(run_id, place)) for place in places))
    return dict(zip(places, read, strict=True))


def distinct(read: Mapping[int, list[StoredRecord]]) -> list[StoredRecord]:
    """Return the newest record of each peer, which may lie at several places."""
    newest: dict[PeerId, StoredRecord] = {}
    for record in sorted(
        (one for records in read.values() for one in records), key=lambda one: one.issued_unix_seconds
    ):
        newest[record.sender] = record
    return [newest[peer] for peer in sorted(newest)]


async def present_peers(store: RecordStore, daemon: Daemon, run_id: bytes) -> list[tuple[PeerId, Presence]]:
    """Return the peers that claim to be in this run now, for a peer that is not in it yet.

    Returns none if the record store does not answer.
    """
    try:
        records = await store.get(presence_key(run_id))
        found = await presences(records, daemon, await daemon.hosts())
    except NetworkError as error:
        log.info("presence_not_read", reason=str(error))
        return []
    return [(record.sender, presence) for record, presence in found]


async def presences(
    records: list[StoredRecord], daemon: Daemon, hosts: Mapping[PeerId, str]
) -> list[tuple[StoredRecord, Presence]]:
    """Return the presence of other peers with usable addresses; the daemon remembers these for its next start.

    `hosts` are the IP addresses from which peers are connected. An address that its peer could not have is left out. An
    address that many peers claim is kept for a few of them. So nobody can make us call a machine of our own network, a
    name, or an uninvolved host again and again. A name stands for the public addresses that it resolves to. A relay's
    address is never called, so it may be any.

    We believe that a peer is on this machine only if it calls us from here, or if a peer here introduced us to the run.
    In a private network we also believe peers that claim to be in it, if we are in it.
    """
    led = {host for one in daemon.bootstrap_peers if (host := hosts.get(one.peer_id))}
    near_all = daemon.home_hosts.union(*map(hosts_behind, led))
    heard: list[tuple[StoredRecord, Presence]] = []
    for record in records:
        try:
            presence = Presence.from_wire(record.payload)
        except PeerError:
            continue  # of another version, or malformed: not a peer to work with
        if record.sender != daemon.peer_id:
            heard.append((record, presence))
    claims = {record.sender: _parsed(presence.addresses, record.sender) for record, presence in heard}
    claimed: dict[PeerId, list[PeerAddress]] = {}
    for peer, own in (await _without_names(claims, daemon.names)).items():
        near = near_all | hosts_behind(hosts.get(peer, ""))
        claimed[peer] = [one for one in own if one.relayed or could_be_of(one, near)]
    minute = max((int(record.issued_unix_seconds) for record, _ in heard), default=0) // CLAIM_SECONDS
    crowded = _crowded(claimed, hosts, minute)
    called = {peer: [one for one in usable if one not in crowded] for peer, usable in claimed.items()}
    daemon.remember(address for usable in called.values() for address in usable)
    return [
        (record, presence.model_copy(update={"addresses": tuple(map(str, called[record.sender]))}))
        for record, presence in heard
    ]


async def _without_names(
    claims: Mapping[PeerId, Sequence[PeerAddress]], names: Names
) -> dict[PeerId, list[PeerAddress]]:
    """Return the addresses with names replaced by what they resolve to; looks up only the first name of each peer."""
    first = {next(filter(None, (one.public_name for one in own)), "") for own in claims.values()}
    hosts = await names.hosts(first - {""})

    def led(one: PeerAddress) -> list[PeerAddress]:
        return one.at(hosts.get(one.public_name, ())) if one.public_name else [one]

    return {peer: [to for one in own for to in led(one)] for peer, own in claims.items()}


def _crowded(
    claimed: Mapping[PeerId, Sequence[PeerAddress]], hosts: Mapping[PeerId, str], minute: int
) -> frozenset[PeerAddress]:
    """Return the addresses of hosts that too many peers claim, except for those drawn anew each minute.

    The address of a peer that calls us from there does not count.
    """
    places: dict[tuple[str, int], dict[str, set[PeerAddress]]] = defaultdict(lambda: defaultdict(set))
    for peer, addresses in claimed.items():
        for one in addresses:
            if one.host != hosts.get(peer) and not one.relayed:
                places[one.host, one.port][one.called].add(one)
    found: set[PeerAddress] = set()
    for claimants in places.values():
        drawn = sorted(claimants, key=lambda called: digest_of(minute.to_bytes(8, "big"), called.encode()))
        found.update(*(claimants[called] for called in drawn[CLAIMANTS_MAX:]))
    return frozenset(found)


def _parsed(texts: tuple[str, ...], peer: PeerId) -> list[PeerAddress]:
    """Return the well-formed ones among the addresses that a peer claims, if they name that peer."""
    found = []
    for text in texts:
        try:
            address = PeerAddress.parse(text)
        except UsageError:
            continue
        if address.peer_id == peer:
            found.append(address)
    return found
