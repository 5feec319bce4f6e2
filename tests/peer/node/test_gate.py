"""Connections of peers that show no pass in time are closed, and no others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from multiaddr import Multiaddr

from coordinator.run.admission_spec import AdmissionSpec
from dht.addresses import PeerAddress
from dht.admission import Grant, Ticket, sign_grant
from dht.daemon import calls
from dht.daemon.process import Daemon, DaemonConfig
from dht.door import Door
from dht.errors import NetworkError
from dht.identity import Identity, PeerId
from dht.invite import Invite
from dht.refusal import Refusal
from dht.statement import digest_of
from peer.machine.throttle import Throttle
from peer.net.network import Network
from peer.node.gate import (
    CLOSED_AT_ONCE,
    GRACE_SECONDS,
    LOOK_SECONDS,
    STRANGERS_MAX,
    ConnectionReaper,
    Gate,
    RelayPolicy,
    initial_gate,
)
from peer.node.options import NodeOptions
from peer.node.parts import KnownAddresses, join_network
from tests.coordinator.builders import Club, presence
from tests.coordinator.rigs import core
from tests.peer.virtual_loop import run_virtual

FRIEND, STRANGER = PeerId("friend"), PeerId("stranger")


def reaper() -> ConnectionReaper:
    daemon: Any = SimpleNamespace(door=SimpleNamespace(knows=lambda peer: peer == FRIEND))
    return ConnectionReaper(daemon)


def test_a_stranger_has_a_while_to_show_its_pass() -> None:
    ours, connected = reaper(), {FRIEND: 1, STRANGER: 2}
    assert ours.strangers(connected, 0.0) == []
    assert ours.strangers(connected, GRACE_SECONDS - 1) == []
    assert ours.strangers(connected, GRACE_SECONDS) == [STRANGER]


def test_a_caller_through_a_relay_is_sent_away_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of such a peer is unknown."""
    key = tmp_path / "key"
    daemon = Daemon(DaemonConfig(key), Identity.load_or_create(key).peer_id)
    daemon._p2p, daemon.door.policy = object(), SimpleNamespace(knows=lambda peer: peer == FRIEND)  # type: ignore[assignment]
    through = Multiaddr(f"/ip4/192.0.2.1/tcp/7331/p2p/{daemon.peer_id}/p2p-circuit").to_bytes()
    hung_up: list[PeerId] = []

    async def connected(*_: object) -> list[tuple[PeerId, list[bytes]]]:
        return [(FRIEND, [through]), (STRANGER, [through])]

    async def disconnect(p2p: object, peer: PeerId, seconds: float) -> None:
        hung_up.append(peer)

    monkeypatch.setattr(calls, "connected_peers", connected)
    monkeypatch.setattr(calls, "disconnect", disconnect)

    async def watch() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS + GRACE_SECONDS + 1.0):
                await ConnectionReaper(daemon).run()

    run_virtual(watch())
    assert hung_up == [STRANGER]


@pytest.mark.parametrize("closed", [True, False])
def test_a_peer_relays_for_members_while_its_owner_lets_it(closed: bool) -> None:
    """If the run asks for passes, a member is a peer that has shown one; otherwise, one that says it is there."""
    club, throttle = Club.of(3, real_keys=True), Throttle()
    spec = AdmissionSpec() if closed else None
    config = club.manifest.config.model_copy(update={"admission": spec})
    network: Any = SimpleNamespace(throttle=throttle)

    async def judge() -> None:
        own = replace(club, manifest=club.manifest.model_copy(update={"config": config})).core(0)
        admits, now = RelayPolicy(own, network).admits, asyncio.get_running_loop().time()
        guest = Identity(b"g" * 32).peer_id
        assert admits(club.ids[1]) == closed  # a founder
        own.presence.see(club.ids[1], presence(1), now)
        own.presence.see(guest, presence(1), now)
        assert admits(club.ids[1])
        assert admits(guest) != closed
        throttle.strangers.closed = True  # the day's upload is used up
        assert not admits(club.ids[1])
        throttle.strangers.closed, throttle.upload.shut = False, True
        assert not admits(club.ids[1])
        throttle.upload.shut = False
        assert admits(club.ids[1])
        own.bans.held[club.ids[1]] = None  # type: ignore[assignment]
        assert not admits(club.ids[1])

    run_virtual(judge())


def test_a_peer_that_can_be_called_leaves_relays_to_those_that_cannot() -> None:
    peer, own = Club.of(2).ids[1], core()
    direct, through = f"/ip4/8.8.4.4/tcp/1/p2p/{peer}", f"/ip4/9.9.9.9/tcp/1/p2p/{FRIEND}/p2p-circuit/p2p/{peer}"
    known = KnownAddresses(met={peer: [through, direct]})
    assert known.of(peer) == [direct]
    known.core = own
    assert known.of(peer) == [direct]
    own.dialable = False
    assert known.of(peer) == [through, direct]
    own.presence.see(peer, presence(1).model_copy(update={"addresses": (through,)}), 0.0)
    assert known.of(peer) == [through]
    own.dialable = True
    assert known.of(peer) == []
    known.on_loopback = True
    assert known.of(peer) == [through], "nobody elsewhere can call us, whatever those on this machine find"


def test_a_caller_that_comes_back_has_its_while_again() -> None:
    ours = reaper()
    ours.strangers({STRANGER: 1}, 0.0)
    ours.strangers({}, 1.0)
    assert ours.strangers({STRANGER: 1}, GRACE_SECONDS) == []


ORGANISER, MEMBER = (Identity(name * 32) for name in (b"o", b"m"))
RUN_ID = digest_of(b"run")


def invite() -> Invite:
    """Return an invite to a member's address, with limits."""
    key = Identity(b"i" * 32)
    word = sign_grant(ORGANISER, RUN_ID, Grant(key=key.peer_id, uses=3, expires_unix_seconds=2**40))
    address = PeerAddress.parse(f"/ip4/192.0.2.1/tcp/7331/p2p/{MEMBER.peer_id}")
    return Invite(RUN_ID, ORGANISER.peer_id, (address,), ticket=Ticket(word=word, seed=b"i" * 32))


def test_a_joining_peers_door_is_guarded_before_it_knows_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors: list[Door] = []

    async def open_network(config: DaemonConfig, *_: object) -> Network:
        doors.append(config.door)
        raise NetworkError("far enough")

    monkeypatch.setattr(Network, "open", open_network)

    async def join() -> Gate:
        with pytest.raises(NetworkError, match="far enough"):
            await join_network(NodeOptions(tmp_path), MEMBER, "learner", RUN_ID, invite())
        gate = doors[-1].policy
        assert isinstance(gate, Gate)
        return gate

    gate, guest = run_virtual(join()), Identity(b"g" * 32).peer_id
    assert gate.refusal(guest, b"") is Refusal.NO_PASS
    assert gate.refusal(guest, b"junk") is Refusal.FALSE_PASS
    assert gate.refusal(guest, invite().pass_for(MEMBER.peer_id)) is Refusal.FALSE_PASS
    assert not gate.knows(guest)
    assert gate.knows(ORGANISER.peer_id)
    assert gate.knows(MEMBER.peer_id)
    assert gate.refusal(guest, invite().pass_for(guest)) is None
    assert gate.knows(guest)


def test_a_pass_expires_by_the_clock_of_the_moment() -> None:
    """A machine that had slept, or whose clock was set, still judged by the clock of its start."""
    clock, guest = [2.0**40], Identity(b"g" * 32).peer_id
    gate = initial_gate(invite(), None, lambda: clock[0])
    assert gate is not None
    assert gate.refusal(guest, invite().pass_for(guest)) is None
    clock[0] += 3600
    assert not gate.knows(guest)
    assert gate.refusal(guest, invite().pass_for(guest)) is Refusal.EXPIRED
    clock[0] -= 3600
    assert gate.knows(guest)


def test_our_owners_observer_comes_in_here_and_has_no_part() -> None:
    ours = core()
    ours.admission.spec = AdmissionSpec(mode="list")
    gate = Gate(ours.admission, lambda: 0.0)
    assert gate.refusal(STRANGER, b"") is Refusal.NO_PASS
    gate.guests.append(STRANGER)
    assert gate.refusal(STRANGER, b"") is None
    assert gate.knows(STRANGER)
    assert not gate.proves(STRANGER, b"")
    assert ours.admission.seat_refusal(STRANGER, b"", contributes=True, unix_seconds=0.0) is Refusal.NO_PASS
    assert not ours.admission.may_have_states(STRANGER)


def test_the_manifests_rule_for_the_door_holds_from_the_first_moment() -> None:
    club = Club.of(2, real_keys=True)
    closed = club.manifest.model_copy(
        update={"config": club.manifest.config.model_copy(update={"admission": AdmissionSpec()})}
    )

    async def gates() -> list[Gate | None]:
        found = [initial_gate(None, one, lambda: 500.0) for one in (closed, club.manifest)]
        return [*found, initial_gate(replace(invite(), ticket=None), None, lambda: 500.0)]

    guarded, *others = run_virtual(gates())
    assert guarded is not None
    assert guarded.refusal(club.ids[1], b"") is None  # a founder
    assert guarded.refusal(STRANGER, b"") is Refusal.NO_PASS
    assert others == [None, None]


def crowd(first: int, count: int) -> dict[PeerId, int]:
    return {PeerId(f"stranger {number}"): 1 for number in range(first, first + count)}


def test_of_a_crowd_those_here_longest_go_before_their_time() -> None:
    ours, early, late = reaper(), crowd(0, 10), crowd(10, STRANGERS_MAX)
    friends = {FRIEND: STRANGERS_MAX}
    assert ours.strangers({**friends, **early}, 0.0) == []
    assert ours.strangers({**friends, **early, **crowd(10, STRANGERS_MAX - 10)}, LOOK_SECONDS) == []
    assert set(ours.strangers({**early, **late}, 2 * LOOK_SECONDS)) == early.keys()
    assert ours.strangers(late, 3 * LOOK_SECONDS) == []


def test_a_new_caller_may_show_its_pass_whatever_the_crowd() -> None:
    ours, newcomer = reaper(), {STRANGER: 1}
    assert ours.strangers(crowd(0, 2 * STRANGERS_MAX), 0.0) == []
    sent_away = ours.strangers({**crowd(0, 2 * STRANGERS_MAX), **newcomer}, LOOK_SECONDS)
    assert len(sent_away) == STRANGERS_MAX + 1
    assert STRANGER not in sent_away


def test_one_stranger_with_many_connections_is_a_crowd() -> None:
    ours, few = reaper(), crowd(0, 10)
    ours.strangers({STRANGER: STRANGERS_MAX}, 0.0)
    assert ours.strangers({STRANGER: STRANGERS_MAX, **few}, LOOK_SECONDS) == [STRANGER]


def test_a_crowd_is_sent_away_bit_by_bit() -> None:
    ours, many = reaper(), crowd(0, 2 * CLOSED_AT_ONCE)
    ours.strangers(many, 0.0)
    assert len(ours.strangers(many, GRACE_SECONDS)) == CLOSED_AT_ONCE
