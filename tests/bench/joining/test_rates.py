from __future__ import annotations

import pytest

from peer.chaos.score import Window
from tests.bench.joining.rates import rate

STEADY = [(0.5 * tick, tick // 2) for tick in range(41)]  # one step a second, asked twice a second, for 20 s


def test_a_steady_pace_is_the_same_in_every_window() -> None:
    for windows in ([Window(0, 20)], [Window(2, 6), Window(10, 18)]):
        found = rate({"one": STEADY, "other": STEADY}, windows)
        assert found.steps_per_second == pytest.approx(1.0)
        assert found.peer_seconds == pytest.approx(2 * sum(one.seconds for one in windows))


def test_only_what_lies_in_a_window_counts() -> None:
    slow = [(time, steps) if time <= 10 else (time, 10) for time, steps in STEADY]  # it stood still from 10 s on
    assert rate({"one": slow}, [Window(0, 10)]).steps_per_second == pytest.approx(1.0)
    assert rate({"one": slow}, [Window(10, 20)]).steps_per_second == 0.0
    assert rate({"one": slow}, [Window(5, 15)]).steps_per_second == pytest.approx(0.5)
    assert rate({"one": STEADY, "other": slow}, [Window(10, 20)]).steps_per_second == pytest.approx(0.5)


def test_steps_between_two_answers_are_spread_over_them() -> None:
    found = rate({"one": [(0.0, 0), (10.0, 10)]}, [Window(2, 4)])
    assert (found.steps, found.peer_seconds) == (pytest.approx(2.0), pytest.approx(2.0))


def test_a_rate_without_samples_is_zero() -> None:
    assert rate({}, [Window(0, 1)]).steps_per_second == 0.0
    assert rate({"one": [(0.0, 0)]}, [Window(0, 1)]).peer_seconds == 0.0
