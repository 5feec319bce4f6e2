"""A chain's certificates read like a list, packed or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import Certificate
from coordinator.chain.packed_history import OPEN_MAX, PackedHistory
from tests.coordinator.builders import Club

CLUB = Club.of(3)
GROWN: list[Certificate] = []


def certificates(count: int) -> list[Certificate]:
    """Return the first `count` certificates of one chain."""
    if len(GROWN) < count:
        chain = CLUB.chain(0, GROWN)
        CLUB.grow(chain, *[(0, 1, 2)] * (count - len(GROWN)))
        GROWN[:] = chain.certificates
    return GROWN[:count]


numbers = st.integers(-OPEN_MAX - 30, OPEN_MAX + 30)


@given(
    st.integers(0, OPEN_MAX + 24), st.lists(st.tuples(st.integers(0, 20), st.integers(0, OPEN_MAX + 20)), max_size=3)
)
def test_it_is_the_list_of_what_was_added_and_not_dropped(first: int, moves: list[tuple[int, int]]) -> None:
    total = first + sum(added for added, _ in moves)
    every = certificates(total)
    kept, history, position = every[:first], PackedHistory(every[:first]), first
    for added, count in moves:
        for one in every[position : position + added]:
            kept.append(one)
            history.append(one)
        position += added
        del kept[: max(0, len(kept) - count)]
        history.keep(count)
        assert list(history) == kept
        assert list(history.digests) == [one.digest for one in kept] == [one.digest for one in history]


@given(numbers, numbers, st.integers(0, OPEN_MAX + 20))
def test_it_is_read_like_a_list(start: int, stop: int, count: int) -> None:
    every = certificates(OPEN_MAX + 20)
    history = PackedHistory(every)
    assert history[start:stop] == every[start:stop]
    assert list(history.first(count)) == every[:count]
    if -len(every) <= start < len(every):
        assert history[start] == every[start]
    else:
        with pytest.raises(IndexError):
            history[start]


def test_a_copy_stays_as_it_is() -> None:
    every = certificates(OPEN_MAX + 12)
    history = PackedHistory(every[:-2])
    copy = history.copy()
    for one in every[-2:]:
        history.append(one)
    history.keep(5)
    assert list(copy) == every[:-2]
    copy.append(every[-2])
    assert list(history) == every[-5:]
