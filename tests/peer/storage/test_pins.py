"""Pins: a state that somebody fetches is kept while its holder continues, but only one and not forever (design §8)."""

from __future__ import annotations

from dht.identity import PeerId
from dht.statement import digest_of
from peer.storage.pins import ASKERS_MAX, IDLE_SECONDS, PIN_SECONDS_MAX, Pins

OLD, NEW = digest_of(b"old"), digest_of(b"new")
ASKER, OTHER = PeerId("asker"), PeerId("other")


def test_a_fetched_state_is_kept_and_no_other_meanwhile() -> None:
    pins, now = Pins(), 0.0
    assert pins.find(0) is None
    for _ in range(5):
        pins.keep(0, OLD, ASKER, now)
        now += 0.9 * IDLE_SECONDS
        pins.keep(0, NEW, OTHER, now)
        assert pins.find(0) == OLD
    pins.keep(1, NEW, OTHER, now)
    assert (pins.find(0), pins.find(1)) == (OLD, NEW)
    pins.keep(0, NEW, OTHER, now + IDLE_SECONDS)
    assert pins.find(0) == NEW


def test_a_peer_that_goes_on_lets_go() -> None:
    pins = Pins()
    pins.keep(0, OLD, ASKER, 0.0)
    pins.release(0, OTHER)
    pins.release(1, ASKER)
    assert pins.find(0) == OLD
    pins.keep(0, NEW, ASKER, 1.0)
    assert pins.find(0) == NEW
    pins.release(0, ASKER)
    assert pins.find(0) is None


def test_a_state_that_several_fetch_is_kept_until_the_last_of_them_goes_on() -> None:
    """Otherwise one that asks for a piece and then for a step would take the state away from all others."""
    pins = Pins()
    pins.keep(0, OLD, ASKER, 0.0)
    pins.keep(0, OLD, OTHER, 1.0)
    pins.release(0, OTHER)
    assert pins.find(0) == OLD
    pins.keep(0, OLD, OTHER, 2.0)
    pins.keep(0, NEW, OTHER, 3.0)
    assert pins.find(0) == OLD
    pins.release(0, ASKER)
    assert pins.find(0) is None


def test_some_askers_are_remembered_but_not_all() -> None:
    pins = Pins()
    for number in range(2 * ASKERS_MAX):
        pins.keep(0, OLD, PeerId(str(number)), 0.0)
    for number in range(ASKERS_MAX):
        assert pins.find(0) == OLD
        pins.release(0, PeerId(str(number)))
    assert pins.find(0) is None


def test_a_peer_that_asks_for_ever_keeps_others_waiting_for_a_while_only() -> None:
    pins, now = Pins(), 0.0
    while now < PIN_SECONDS_MAX:
        pins.keep(0, OLD, ASKER, now)
        assert pins.find(0) == OLD
        now += IDLE_SECONDS / 2
    pins.keep(0, NEW, OTHER, now)
    assert pins.find(0) == NEW


def test_a_peer_that_never_stops_asking_gives_way_to_the_first_other_one() -> None:
    """It asks more often than the other: when its turn is over, it must not begin another one at once."""
    pins, now = Pins(), 0.0
    while now < PIN_SECONDS_MAX + IDLE_SECONDS:
        pins.keep(0, OLD, ASKER, now)
        now += IDLE_SECONDS / 4
    assert pins.find(0) == OLD  # nobody wants another one
    pins.keep(0, NEW, OTHER, now)
    assert pins.find(0) == NEW
    pins.keep(0, OLD, ASKER, now)
    assert pins.find(0) == NEW


def test_to_go_from_state_to_state_makes_nobodys_turn_longer() -> None:
    pins, now, states = Pins(), 0.0, (OLD, digest_of(b"between"))
    while now < PIN_SECONDS_MAX:
        pins.keep(0, states[0], ASKER, now)
        pins.keep(0, states[1], ASKER, now)
        pins.keep(0, NEW, OTHER, now)
        assert pins.find(0) == states[1]
        now += IDLE_SECONDS / 2
    pins.keep(0, NEW, OTHER, now)
    assert pins.find(0) == NEW
