"""A line of a bad link: how long frames take, which are lost, and that what arrives keeps its order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import LocalError
from peer.chaos.executor import LinkFault
from peer.chaos.link import QUEUE_SECONDS, LinkDirection
from peer.chaos.user_link import UserLink

START = 100.0


def test_a_frame_takes_its_time_on_the_line_and_then_the_delay() -> None:
    line = LinkDirection(random.Random(0), bytes_per_second=1000.0, delay_seconds=0.5)
    line.take(b"a" * 100, START)
    line.take(b"b" * 50, START)
    assert line.next_due() == pytest.approx(START + 0.6)
    assert line.arrived(START + 0.599) == []
    assert line.arrived(START + 0.601) == [b"a" * 100]
    assert line.next_due() == pytest.approx(START + 0.65)


def test_a_line_without_limit_takes_no_time() -> None:
    line = LinkDirection(random.Random(0))
    line.take(bytes(60_000), START)
    assert line.arrived(START) == [bytes(60_000)]
    assert line.next_due() is None


@given(st.lists(st.tuples(st.floats(0, 0.1), st.integers(1, 1500)), max_size=60), st.floats(1e3, 1e6), st.floats(0, 1))
def test_no_line_is_faster_than_it_is_or_changes_the_order(
    frames: list[tuple[float, int]], bytes_per_second: float, delay_seconds: float
) -> None:
    line, now, taken = LinkDirection(random.Random(0), bytes_per_second, delay_seconds), START, 0
    for number, (pause, size) in enumerate(frames):
        now += pause
        before = len(line._under_way)
        line.take(number.to_bytes(2, "big") * size, now)
        if len(line._under_way) > before:
            taken += 2 * size
            due = max(at for at, _, _ in line._under_way)
            assert due >= START + taken / bytes_per_second + delay_seconds - 1e-6
            assert due <= now + QUEUE_SECONDS + delay_seconds + 1e-6
    numbers = [int.from_bytes(frame[:2], "big") for frame in line.arrived(now + 1e6)]
    assert numbers == sorted(numbers)


def test_chance_takes_its_share() -> None:
    line = LinkDirection(random.Random(0), loss_share=0.25)
    for _ in range(4000):
        line.take(b"x", START)
    assert len(line.arrived(START)) == pytest.approx(3000, abs=150)


def test_a_link_that_cannot_be_made_says_why() -> None:
    link = UserLink.start(["sh", "-c", "echo no such interface >&2; exit 1"])
    with pytest.raises(LocalError, match="no such interface"):
        link.shape(LinkFault(delay_seconds=1.0))
    with pytest.raises(LocalError, match="cannot be started"):
        UserLink.start(["/nowhere/python"])
