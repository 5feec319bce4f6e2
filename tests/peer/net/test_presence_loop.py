"""The presence loop publishes our presence and reads that of others; one may fail without the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from multiaddr import Multiaddr

from coordinator.wire.presence import PRESENCE_BYTES_MAX, Presence
from coordinator.wire.shards import ROOT, PresenceShards, shard_of
from dht.addresses import PeerAddress
from dht.daemon import own_hosts
from dht.daemon import process as daemons
from dht.daemon.dns_names import Names
from dht.hivemind_store import why_refused
from dht.identity import Identity, KeyVerifier, PeerId
from dht.records import presence_key
from dht.statement import digest_of
from dht.validation import RecordRules
from peer.net import presence_loop
from peer.net.hivemind_transport import _multiaddrs
from peer.net.presence_loop import CLAIM_SECONDS, CLAIMANTS_MAX, PresenceLoop, PresenceReaders, presences
from tests.coordinator.builders import presence
from tests.dht.memory_store import MemoryDirectory, MemoryStore
from tests.peer.virtual_loop import run_virtual

RUN_ID = digest_of(b"run")
ME, OTHER = Identity(digest_of(b"me")), Identity(digest_of(b"other"))
UNIX = 1e9


class Daemon:
    """A fake daemon with only what the presence loop needs."""

    peer_id = ME.peer_id
    bootstrap_peers: tuple[PeerAddress, ...] = ()
    home_hosts: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.names = Names(self.look_up)

    async def look_up(self, name: str) -> list[str]:
        """Resolve a name: those of example.org lead to our own router, those of example.com to one public machine."""
        return ["93.184.216.34"] if name.endswith(".example.com") else ["192.168.1.1", "127.0.0.1"]

    async def hosts(self) -> dict[PeerId, str]:
        return {}

    def remember(self, addresses: object) -> None:
        pass


def readers(
    seen: Callable[[PeerId, Presence], None],
    needed: frozenset[PeerId] = frozenset(),
    counted: Callable[[float], None] = lambda _: None,
) -> PresenceReaders:
    return PresenceReaders(lambda: needed, lambda wanted: wanted, seen, counted)


def test_others_are_seen_also_while_nobody_takes_our_own_record() -> None:
    async def main() -> tuple[list[PeerId], PresenceLoop]:
        loop = asyncio.get_running_loop()
        ahead = [100.0]  # another machine with our key, whose clock is ahead, so its record is newer than ours
        directory = MemoryDirectory(RecordRules(RUN_ID, KeyVerifier()), lambda: UNIX + loop.time() + ahead[0])
        key = presence_key(RUN_ID)
        await MemoryStore(directory, ME).put(key, presence(0).to_wire(), 60.0)
        ahead[0] = 0.0
        await MemoryStore(directory, OTHER).put(key, presence(1).to_wire(), 60.0)
        seen: list[PeerId] = []
        daemon: Any = Daemon()

        def see(peer: PeerId, _: Presence) -> None:
            seen.append(peer)

        looking = PresenceLoop(MemoryStore(directory, ME), daemon, RUN_ID, lambda: presence(0), readers(see))
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await looking.run(1.0, 9.0)
        return seen, looking

    seen, looking = run_virtual(main())
    assert looking.rounds >= 3
    assert seen == [OTHER.peer_id] * looking.rounds


def test_a_start_takes_few_looks_however_long_a_lifetime_is() -> None:
    """Two looks a second would be most of the cost of a start, yet peers that start with us must be found at once."""

    async def looks(seconds: float) -> int:
        loop = asyncio.get_running_loop()
        directory = MemoryDirectory(RecordRules(RUN_ID, KeyVerifier()), lambda: UNIX + loop.time())
        daemon: Any = Daemon()
        see = readers(lambda peer, _: None)
        looking = PresenceLoop(MemoryStore(directory, ME), daemon, RUN_ID, lambda: presence(0), see)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await looking.run(30.0, 90.0)
        return looking.rounds

    assert run_virtual(looks(2.0)) >= 4
    assert run_virtual(looks(90.0)) < 30


@pytest.mark.parametrize("text", [f"/dns4/münchen.example/tcp/7400/p2p/{OTHER.peer_id}", "/ip6zone/١٢٣"])
def test_an_address_that_no_resolver_knows_ends_nobody(tmp_path: Path, text: str) -> None:
    """Checked with the address book of a real daemon, which accepts only ASCII."""
    me = Identity.load_or_create(tmp_path / "key")

    async def main() -> list[PeerId]:
        loop = asyncio.get_running_loop()
        directory = MemoryDirectory(RecordRules(RUN_ID, KeyVerifier()), lambda: UNIX + loop.time())
        theirs = presence(1).model_copy(update={"addresses": (text,)})
        await MemoryStore(directory, OTHER).put(presence_key(RUN_ID), theirs.to_wire(), 60.0)
        seen: list[PeerId] = []
        daemon = daemons.Daemon(daemons.DaemonConfig(tmp_path / "key", address_book=tmp_path / "met"), me.peer_id)
        see = readers(lambda peer, _: seen.append(peer))
        looking = PresenceLoop(MemoryStore(directory, me), daemon, RUN_ID, lambda: presence(0), see)
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await looking.run(1.0, 9.0)
        return seen

    assert OTHER.peer_id in run_virtual(main())


LOOPBACK, HOME = "/ip4/127.0.0.1/tcp/80", "/ip4/192.168.1.1/tcp/80"
PUBLIC, ELSEWHERE = "/ip4/93.184.216.34/tcp/7400", "/ip4/192.168.9.1/tcp/7400"


HOST = Identity(digest_of(b"host"))
OWN = "10.0.0.4"


@pytest.mark.parametrize(
    ("host", "connected", "home", "believed"),
    [
        ("93.184.216.40", "93.184.216.34", "", {PUBLIC}),
        ("93.184.216.40", "", "", {PUBLIC}),
        ("", "", "", {PUBLIC}),
        ("192.168.1.4", "", "", {PUBLIC, HOME, ELSEWHERE}),
        ("127.0.0.1", "", "", {PUBLIC, LOOPBACK}),
        (OWN, "", "", {PUBLIC, LOOPBACK}),
        ("93.184.216.40", OWN, "", {PUBLIC, LOOPBACK}),
        ("93.184.216.40", "192.168.1.9", "", {PUBLIC, HOME, ELSEWHERE}),
        ("93.184.216.40", "127.0.0.1", "", {PUBLIC, LOOPBACK}),
        ("10.0.0.1", "", "", {PUBLIC}),
        ("93.184.216.40", "", "192.168.1.7", {PUBLIC, HOME, ELSEWHERE}),
        ("93.184.216.40", "", "10.0.0.7", {PUBLIC}),
    ],
)
def test_only_addresses_that_a_peer_could_have_are_called(
    monkeypatch: pytest.MonkeyPatch, host: str, connected: str, home: str, believed: set[str]
) -> None:
    """Before, two forged records made every peer call a machine in its own network 30 times in 40 seconds.

    Other addresses that an invite names make no difference.
    """
    monkeypatch.setattr(own_hosts, "is_own", lambda one: one == OWN)
    claimed = [LOOPBACK, HOME, PUBLIC, ELSEWHERE, "/dns4/router.example.org/tcp/80", "/ip4/0.0.0.0/tcp/1"]
    claimed += ["/ip4/93.184.216.34/udp/7400/quic-v1", "/ip4/93.184.216.34/udp/7400/quic-v1/webtransport"]
    theirs = presence(1).model_copy(update={"addresses": tuple(f"{one}/p2p/{OTHER.peer_id}" for one in claimed)})
    daemon: Any = Daemon()
    daemon.home_hosts = frozenset({home} - {""})
    invited = (LOOPBACK, HOME, PUBLIC)
    daemon.bootstrap_peers = tuple(PeerAddress.parse(f"{place}/p2p/{HOST.peer_id}") for place in invited)
    hosts = {peer: place for peer, place in ((HOST.peer_id, host), (OTHER.peer_id, connected)) if place}
    record: Any = SimpleNamespace(sender=OTHER.peer_id, payload=theirs.to_wire(), issued_unix_seconds=UNIX)
    ((_, found),) = asyncio.run(presences([record], daemon, hosts))
    assert {one.removesuffix(f"/p2p/{OTHER.peer_id}") for one in found.addresses} == believed


CROWD = [Identity(digest_of(b"crowd", bytes([number]))).peer_id for number in range(60)]


def called_for(place: str, unix_seconds: float, hosts: dict[PeerId, str] | None = None) -> set[PeerId]:
    """Return the peers of the crowd for whom the place is kept as an address, when all of them claim it."""
    records: list[Any] = [
        SimpleNamespace(
            sender=peer,
            payload=presence(1).model_copy(update={"addresses": (f"{place.format(peer=peer)}/p2p/{peer}",)}).to_wire(),
            issued_unix_seconds=unix_seconds,
        )
        for peer in CROWD
    ]
    daemon: Any = Daemon()
    heard = asyncio.run(presences(records, daemon, hosts or {}))
    return {record.sender for record, found in heard if found.addresses}


def test_a_peer_with_a_name_only_is_called_where_that_leads() -> None:
    """A home router may get a new address each night. The name itself is not called: libp2p would resolve it again."""
    places = ("/dns4/home.example.com/tcp/7400", "/dns4/other.example.com/tcp/7400", "/dns4/nas.example.org/tcp/80")
    for place, called in zip(places, ("/ip4/93.184.216.34/tcp/7400", "/ip4/93.184.216.34/tcp/7400", None), strict=True):
        theirs = presence(1).model_copy(update={"addresses": (f"{place}/p2p/{OTHER.peer_id}",)})
        record: Any = SimpleNamespace(sender=OTHER.peer_id, payload=theirs.to_wire(), issued_unix_seconds=UNIX)
        daemon: Any = Daemon()
        daemon.home_hosts = frozenset({"192.168.1.7"})
        ((_, found),) = asyncio.run(presences([record], daemon, {OTHER.peer_id: "192.168.1.9"}))
        assert found.addresses == (() if called is None else (f"{called}/p2p/{OTHER.peer_id}",))


def test_only_the_first_name_of_a_peer_is_looked_up() -> None:
    asked: list[str] = []

    async def look_up(name: str) -> list[str]:
        asked.append(name)
        return []

    claimed = tuple(f"/dns4/{one}.example.com/tcp/1/p2p/{OTHER.peer_id}" for one in "abc")
    theirs = presence(1).model_copy(update={"addresses": claimed})
    record: Any = SimpleNamespace(sender=OTHER.peer_id, payload=theirs.to_wire(), issued_unix_seconds=UNIX)
    daemon: Any = Daemon()
    daemon.names = Names(look_up)
    asyncio.run(presences([record], daemon, {}))
    assert asked == ["a.example.com"]


def test_a_place_that_many_claim_is_called_for_a_few_of_them_in_turn() -> None:
    """Before, each key that named a place made every peer call it four times in 40 seconds."""
    first, later = called_for(PUBLIC, UNIX), called_for(PUBLIC, UNIX + CLAIM_SECONDS)
    assert len(first) == len(later) == CLAIMANTS_MAX
    assert first != later
    assert called_for(PUBLIC, UNIX) == first
    everybody = [called_for(PUBLIC, UNIX + minute * CLAIM_SECONDS) for minute in range(200)]
    assert set.union(*everybody) == set(CROWD)  # the peer that is there, too, if it has not called us first


def test_names_that_lead_to_one_place_are_that_place() -> None:
    assert len(called_for("/dns4/some.example.com/tcp/7400", UNIX)) == CLAIMANTS_MAX


def test_a_peer_is_called_where_it_calls_from_whichever_others_claim_that() -> None:
    hosts = dict.fromkeys(CROWD[:10], "93.184.216.34")
    assert len(called_for(PUBLIC, UNIX, hosts)) == 10 + CLAIMANTS_MAX
    assert set(CROWD[:10]) <= called_for(PUBLIC, UNIX, hosts)


def test_peers_behind_one_relay_are_all_called_through_it() -> None:
    assert called_for(f"{PUBLIC}/p2p/{OTHER.peer_id}/p2p-circuit", UNIX) == set(CROWD)


def test_a_place_behind_which_a_relay_is_said_to_be_is_any_and_never_called() -> None:
    """Only the relay is called, by its peer id, over a connection that we already have to it."""
    through = f"{HOME}/p2p/{OTHER.peer_id}/p2p-circuit"
    assert called_for(through, UNIX) == set(CROWD)
    assert called_for(f"{PUBLIC}/p2p/{{peer}}/p2p-circuit", UNIX) == set(CROWD), "nor is it anybody's"
    (peer, *_) = CROWD
    (place,) = _multiaddrs([f"{through}/p2p/{peer}"], peer)
    assert str(Multiaddr(place)) == f"/p2p/{OTHER.peer_id}/p2p-circuit"
    assert _multiaddrs(["/p2p-circuit", f"/p2p-circuit/p2p/{peer}"], peer) == []


def test_a_record_that_came_too_late_says_nothing_about_the_clock() -> None:
    assert "expired on its way" in why_refused(UNIX, UNIX)
    assert "clock" in why_refused(UNIX + 1, UNIX)


@pytest.mark.parametrize("turns", range(4))
def test_news_and_the_end_at_the_same_moment_are_an_end(turns: int) -> None:
    """Before, a cancellation that came together with the event was lost, and waiting for the end never ended."""

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        directory = MemoryDirectory(RecordRules(RUN_ID, KeyVerifier()), lambda: UNIX + loop.time())
        daemon: Any = Daemon()
        looking = PresenceLoop(
            MemoryStore(directory, ME), daemon, RUN_ID, lambda: presence(0), readers(lambda *_: None)
        )
        running = asyncio.create_task(looking.run(3.0, 9.0))
        await asyncio.sleep(0.1)
        looking.hurry()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running], timeout=60.0)
        ended = running.cancelled()
        running.cancel()
        return ended

    assert run_virtual(main())


def test_others_are_seen_in_no_order_that_they_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first peers that are ahead are asked; in key order, all late comers would ask the same few."""
    monkeypatch.setattr(presence_loop, "RANDOM", random.Random(0))
    others = [Identity(digest_of(b"other", bytes([number]))) for number in range(20)]

    async def main() -> tuple[list[PeerId], int]:
        loop = asyncio.get_running_loop()
        directory = MemoryDirectory(RecordRules(RUN_ID, KeyVerifier()), lambda: UNIX + loop.time())
        for one in others:
            await MemoryStore(directory, one).put(presence_key(RUN_ID), presence(1).to_wire(), 60.0)
        seen: list[PeerId] = []
        daemon: Any = Daemon()
        see = readers(lambda peer, _: seen.append(peer))
        looking = PresenceLoop(MemoryStore(directory, ME), daemon, RUN_ID, lambda: presence(0), see)
        with suppress(TimeoutError):
            async with asyncio.timeout(4.0):
                await looking.run(1.0, 9.0)
        return seen, looking.rounds

    seen, rounds = run_virtual(main())
    looks = [seen[start : start + len(others)] for start in range(0, len(seen), len(others))]
    assert len(looks) == rounds >= 3
    assert {frozenset(look) for look in looks} == {frozenset(one.peer_id for one in others)}
    assert len({look[0] for look in looks}) > 1


def test_a_record_that_just_fits_still_does_with_the_depth_of_a_large_swarm() -> None:
    """The depth was added to a record that had been made to fit, and one byte too many ended the peer."""
    many = (presence(versions=(200,) * count, heads=(bytes(8),) * count) for count in range(100, 300))
    bare, room = next((one, room) for one in many if 0 <= (room := PRESENCE_BYTES_MAX - len(one.to_wire())) < 32)
    longest = bare.model_copy(update={"name": "n" * room})
    assert len(longest.to_wire()) == PRESENCE_BYTES_MAX

    async def main() -> list[Presence]:
        directory = MemoryDirectory(RecordRules(RUN_ID, KeyVerifier()), lambda: UNIX)
        theirs = presence(1).model_copy(update={"shard_depth": 2})
        await MemoryStore(directory, OTHER).put(presence_key(RUN_ID), theirs.to_wire(), 60.0)
        daemon: Any = Daemon()
        see = readers(lambda peer, _: None, frozenset({OTHER.peer_id}))
        looking = PresenceLoop(MemoryStore(directory, ME), daemon, RUN_ID, lambda: longest, see)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await looking.run(3.0, 60.0)
        found = await MemoryStore(directory, OTHER).get(presence_key(RUN_ID, shard_of(ME.peer_id, 1)))
        return [Presence.from_wire(one.payload) for one in found]

    (told,) = run_virtual(main())
    assert told == longest.model_copy(update={"shard_depth": 1, "name": ""})


def test_in_a_large_swarm_a_peer_writes_where_others_of_its_depth_read() -> None:
    """It learns the depth from the active set, and then sees its neighbours and, at each look, another shard."""
    others = [Identity(digest_of(b"other", bytes([number]))) for number in range(40)]
    active = frozenset(one.peer_id for one in others[:3])
    depth = 3

    async def main() -> tuple[set[PeerId], PresenceLoop, list[float], list[int]]:
        loop = asyncio.get_running_loop()
        directory = MemoryDirectory(RecordRules(RUN_ID, KeyVerifier()), lambda: UNIX + loop.time())
        for one in others:
            for place in PresenceShards(one.peer_id, depth).written(active):
                theirs = presence(1).model_copy(update={"shard_depth": depth})
                await MemoryStore(directory, one).put(presence_key(RUN_ID, place), theirs.to_wire(), 60.0)
        seen, counted = set[PeerId](), list[float]()
        daemon: Any = Daemon()
        see = readers(lambda peer, _: seen.add(peer), active, counted.append)
        looking = PresenceLoop(MemoryStore(directory, ME), daemon, RUN_ID, lambda: presence(0), see)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await looking.run(3.0, 9.0)
        reader = MemoryStore(directory, OTHER)
        places = [shard_of(ME.peer_id, at) for at in range(5)]
        ours = [
            place
            for place in places
            for one in await reader.get(presence_key(RUN_ID, place))
            if one.sender == ME.peer_id
        ]
        return seen, looking, counted, ours

    seen, looking, counted, ours = run_virtual(main())
    assert active <= seen
    assert len(seen) < len(others)
    assert looking.shards.depth == depth - 1  # only as deep as so few need, but in their sight
    assert counted[0] >= 64
    assert {shard_of(ME.peer_id, depth - 1), shard_of(ME.peer_id, depth - 2)} <= set(ours)
    assert ROOT not in ours  # newcomers would fill it, and the active sets could not write there
