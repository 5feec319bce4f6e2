"""Pins: a state that somebody fetches is kept while its holder continues, but only one and not forever (design §8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from dht.identity import PeerId
from dht.statement import digest_of
from peer.storage.pins import ASKERS_MAX, IDLE_SECONDS, PIN_SECONDS_MAX, Pins

OLD, NEW = digest_of(b"old"), digest_of(b"new")
ASKER, OTHER = PeerId("asker"), PeerId("other")


@dataclass
class Timed:
    """Pins by a clock that goes on as it is told."""

    now: float = 0.0
    pins: Pins = field(init=False)

    def __post_init__(self) -> None:
        self.pins = Pins(lambda: self.now)

    def after(self, seconds: float) -> Pins:
        self.now += seconds
        return self.pins


def test_a_fetched_state_is_kept_and_no_other_meanwhile() -> None:
    timed = Timed()
    pins = timed.pins
    assert pins.find(0) is None
    for _ in range(5):
        pins.keep(0, OLD, ASKER)
        timed.after(0.9 * IDLE_SECONDS).keep(0, NEW, OTHER)
        assert pins.find(0) == OLD
    pins.keep(1, NEW, OTHER)
    assert (pins.find(0), pins.find(1)) == (OLD, NEW)
    timed.after(IDLE_SECONDS).keep(0, NEW, OTHER)
    assert pins.find(0) == NEW


def test_a_state_that_nobody_asks_for_any_more_is_released_without_another_asker() -> None:
    """A peer that finishes says so to one of its holders only: the others kept its state for good."""
    timed = Timed()
    timed.pins.keep(0, OLD, ASKER)
    assert timed.after(0.99 * IDLE_SECONDS).find(0) == OLD
    assert timed.after(0.01 * IDLE_SECONDS).find(0) is None


def test_a_peer_that_goes_on_lets_go() -> None:
    pins = Timed().pins
    pins.keep(0, OLD, ASKER)
    pins.release(0, OTHER)
    pins.release(1, ASKER)
    assert pins.find(0) == OLD
    pins.keep(0, NEW, ASKER)
    assert pins.find(0) == NEW
    pins.release(0, ASKER)
    assert pins.find(0) is None


def test_a_state_that_several_fetch_is_kept_until_the_last_of_them_goes_on() -> None:
    """Otherwise one that asks for a piece and then for a step would take the state away from all others."""
    pins = Timed().pins
    pins.keep(0, OLD, ASKER)
    pins.keep(0, OLD, OTHER)
    pins.release(0, OTHER)
    assert pins.find(0) == OLD
    pins.keep(0, OLD, OTHER)
    pins.keep(0, NEW, OTHER)
    assert pins.find(0) == OLD
    pins.release(0, ASKER)
    assert pins.find(0) is None


def test_some_askers_are_remembered_but_not_all() -> None:
    pins = Timed().pins
    for number in range(2 * ASKERS_MAX):
        pins.keep(0, OLD, PeerId(str(number)))
    for number in range(ASKERS_MAX):
        assert pins.find(0) == OLD
        pins.release(0, PeerId(str(number)))
    assert pins.find(0) is None


def test_a_peer_that_asks_for_ever_keeps_others_waiting_for_a_while_only() -> None:
    timed = Timed()
    while timed.now < PIN_SECONDS_MAX:
        timed.pins.keep(0, OLD, ASKER)
        assert timed.pins.find(0) == OLD
        timed.after(IDLE_SECONDS / 2)
    timed.pins.keep(0, NEW, OTHER)
    assert timed.pins.find(0) == NEW


def test_a_peer_that_never_stops_asking_gives_way_to_the_first_other_one() -> None:
    """It asks more often than the other: when its turn is over, it must not begin another one at once."""
    timed = Timed()
    pins = timed.pins
    while timed.now < PIN_SECONDS_MAX + IDLE_SECONDS:
        pins.keep(0, OLD, ASKER)
        timed.after(IDLE_SECONDS / 4)
    assert pins.find(0) == OLD  # nobody wants another one
    pins.keep(0, NEW, OTHER)
    assert pins.find(0) == NEW
    pins.keep(0, OLD, ASKER)
    assert pins.find(0) == NEW


def test_to_go_from_state_to_state_makes_nobodys_turn_longer() -> None:
    timed, states = Timed(), (OLD, digest_of(b"between"))
    pins = timed.pins
    while timed.now < PIN_SECONDS_MAX:
        pins.keep(0, states[0], ASKER)
        pins.keep(0, states[1], ASKER)
        pins.keep(0, NEW, OTHER)
        assert pins.find(0) == states[1]
        timed.after(IDLE_SECONDS / 2)
    pins.keep(0, NEW, OTHER)
    assert pins.find(0) == NEW
