"""Connections of whoever shows no pass in time are closed, and nobody else's."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from multiaddr import Multiaddr

from dht.daemon import calls
from dht.daemon.process import Daemon, DaemonConfig
from dht.identity import Identity, PeerId
from peer.node.gate import CLOSED_AT_ONCE, GRACE_SECONDS, LOOK_SECONDS, Usher
from tests.peer.virtual_loop import run_virtual

FRIEND, STRANGER = PeerId("friend"), PeerId("stranger")


def usher() -> Usher:
    daemon: Any = SimpleNamespace(door=SimpleNamespace(knows=lambda peer: peer == FRIEND))
    return Usher(daemon)


def test_a_stranger_has_a_while_to_show_its_pass() -> None:
    ours, connected = usher(), {FRIEND: "192.0.2.1", STRANGER: "192.0.2.2"}
    assert ours.strangers(connected, 0.0) == []
    assert ours.strangers(connected, GRACE_SECONDS - 1) == []
    assert ours.strangers(connected, GRACE_SECONDS) == [STRANGER]


def test_who_comes_through_a_relay_is_sent_away_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No host is known of it."""
    key = tmp_path / "key"
    daemon = Daemon(DaemonConfig(key), Identity.load_or_create(key).peer_id)
    daemon._p2p, daemon.door.keeper = object(), SimpleNamespace(knows=lambda peer: peer == FRIEND)  # type: ignore[assignment]
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
                await Usher(daemon).run()

    run_virtual(watch())
    assert hung_up == [STRANGER]


def test_who_comes_back_has_its_while_again() -> None:
    ours = usher()
    ours.strangers({STRANGER: ""}, 0.0)
    ours.strangers({}, 1.0)
    assert ours.strangers({STRANGER: ""}, GRACE_SECONDS) == []


def test_a_crowd_is_sent_away_bit_by_bit() -> None:
    ours, crowd = usher(), {PeerId(f"stranger {number}"): "" for number in range(2 * CLOSED_AT_ONCE)}
    ours.strangers(crowd, 0.0)
    assert len(ours.strangers(crowd, GRACE_SECONDS)) == CLOSED_AT_ONCE
