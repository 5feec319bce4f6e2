"""The time that a download will still take, estimated from its last seconds."""

from __future__ import annotations

import pytest

from coordinator.views import quantity
from peer.sync.rate import RATE_SECONDS, RATE_SECONDS_MIN, SLICE_SECONDS, TransferRate


def test_the_time_left_follows_the_rate_of_the_last_seconds() -> None:
    inflow = TransferRate()
    assert inflow.seconds_left(1000, 0.0) is None
    for tick in range(40):  # 1,000 bytes a second
        inflow.add(250, tick / 4)
    assert inflow.seconds_left(5000, 9.75) == pytest.approx(5.0)
    for tick in range(200):  # from now on 100, and what was before is forgotten
        inflow.add(25, 10 + tick / 4)
    assert inflow.seconds_left(5000, 59.75) == pytest.approx(50.0)
    assert inflow.seconds_left(0, 59.75) == 0.0


def test_nothing_is_said_before_it_is_known_or_while_nothing_comes() -> None:
    inflow = TransferRate()
    inflow.add(1000, 0.0)
    inflow.add(1000, RATE_SECONDS_MIN / 2)
    assert inflow.seconds_left(1000, 0.9 * RATE_SECONDS_MIN) is None
    assert inflow.seconds_left(1000, RATE_SECONDS_MIN) == pytest.approx(RATE_SECONDS_MIN)
    assert inflow.seconds_left(1000, 4 * RATE_SECONDS_MIN) == pytest.approx(4 * RATE_SECONDS_MIN), "it has stalled"
    assert inflow.seconds_left(1000, 2 * RATE_SECONDS) is None


def test_a_fast_line_keeps_few_entries() -> None:
    inflow = TransferRate()
    for piece in range(20_000):
        inflow.add(1 << 18, piece / 1000)
    assert len(inflow._slices) <= RATE_SECONDS / SLICE_SECONDS + 1
    assert inflow.seconds_left(1 << 28, 19.999) == pytest.approx(1.024, rel=0.05)


def test_times_that_are_estimated_are_told_in_one_unit() -> None:
    seconds = (0.0, 0.2, 99.0, 99.5, 100.0, 5999.0, 6000.0, 36_000.0)
    assert [quantity.rough(one) for one in seconds] == [
        "0 s",
        "1 s",
        "99 s",
        "100 s",
        "2 min",
        "100 min",
        "2 h",
        "10 h",
    ]
