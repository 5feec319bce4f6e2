"""A state that somebody fetches is kept while its holder goes on: few, and not for ever (design §8)."""

from __future__ import annotations

import torch

from dht.statement import digest_of
from peer.outer_optimizer import OuterState
from peer.pins import IDLE_SECONDS, PIN_SECONDS_MAX, PINNED_MAX, Pins

NAMES = [digest_of(b"certificate", bytes([number])) for number in range(PINNED_MAX + 2)]
STATES = [OuterState(torch.zeros(1), torch.full((1,), float(number))) for number in range(PINNED_MAX + 2)]


def test_what_somebody_asks_for_stays_while_it_is_asked_for() -> None:
    pins, now = Pins(), 0.0
    for _ in range(5):
        pins.keep(0, NAMES[0], STATES[0], now)
        now += 0.9 * IDLE_SECONDS
        assert pins.expire(now)
        assert pins.find(0, NAMES[0]) is STATES[0]
    assert pins.find(1, NAMES[0]) is None
    assert not pins.expire(now + IDLE_SECONDS)
    assert pins.find(0, NAMES[0]) is None


def test_few_are_kept_of_each_fragment_until_one_is_let_go() -> None:
    pins = Pins()
    for fragment in range(2):
        for name, state in zip(NAMES, STATES, strict=True):
            pins.keep(fragment, name, state, 0.0)
        assert [pins.find(fragment, name) for name in NAMES] == [*STATES[:PINNED_MAX], None, None]
    pins.keep(0, NAMES[0], STATES[0], 0.9 * IDLE_SECONDS)
    pins.keep(0, NAMES[-1], STATES[-1], IDLE_SECONDS)
    assert [pins.find(0, name) for name in NAMES] == [STATES[0], *[None] * PINNED_MAX, STATES[-1]]


def test_who_asks_for_ever_keeps_nothing_for_ever() -> None:
    pins, now = Pins(), 0.0
    pins.keep(0, NAMES[0], STATES[0], now)
    while now < PIN_SECONDS_MAX:
        assert pins.find(0, NAMES[0]) is not None
        now += IDLE_SECONDS / 2
        if pins.find(0, NAMES[0]) is not None and now < PIN_SECONDS_MAX:
            pins.keep(0, NAMES[0], STATES[0], now)
    assert not pins.expire(now)
