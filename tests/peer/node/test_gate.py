"""Connections of whoever shows no pass in time are closed, and nobody else's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dht.identity import PeerId
from peer.node.gate import CLOSED_AT_ONCE, GRACE_SECONDS, Usher

FRIEND, STRANGER = PeerId("friend"), PeerId("stranger")


def usher() -> Usher:
    daemon: Any = SimpleNamespace(door=SimpleNamespace(knows=lambda peer: peer == FRIEND))
    return Usher(daemon)


def test_a_stranger_has_a_while_to_show_its_pass() -> None:
    ours, connected = usher(), {FRIEND: "192.0.2.1", STRANGER: "192.0.2.2"}
    assert ours.strangers(connected, 0.0) == []
    assert ours.strangers(connected, GRACE_SECONDS - 1) == []
    assert ours.strangers(connected, GRACE_SECONDS) == [STRANGER]


def test_who_comes_back_has_its_while_again() -> None:
    ours = usher()
    ours.strangers({STRANGER: ""}, 0.0)
    ours.strangers({}, 1.0)
    assert ours.strangers({STRANGER: ""}, GRACE_SECONDS) == []


def test_a_crowd_is_sent_away_bit_by_bit() -> None:
    ours, crowd = usher(), {PeerId(f"stranger {number}"): "" for number in range(2 * CLOSED_AT_ONCE)}
    ours.strangers(crowd, 0.0)
    assert len(ours.strangers(crowd, GRACE_SECONDS)) == CLOSED_AT_ONCE
