"""Memory that is used again: only buffers without references, and only up to the bound."""

from __future__ import annotations

import gc

import pytest
import torch

from peer.machine.buffer_pool import HUGE_PAGE_BYTES, BufferPool, new_vector

KEPT_MAX = 2


@pytest.mark.parametrize("elements", [0, 1, HUGE_PAGE_BYTES // 4 - 1, HUGE_PAGE_BYTES // 4, 700_001])
def test_a_new_vector_is_as_long_as_asked_and_begins_a_huge_page_if_it_is_long(elements: int) -> None:
    vector = new_vector(elements).fill_(3)
    assert (vector.dtype, vector.shape) == (torch.float32, (elements,))
    assert float(vector.sum(dtype=torch.float64)) == 3 * elements
    assert 4 * elements < HUGE_PAGE_BYTES or vector.data_ptr() % HUGE_PAGE_BYTES == 0


def test_a_vector_has_its_own_memory_while_anybody_holds_it_or_a_part_of_it() -> None:
    room = BufferPool(KEPT_MAX)
    held = [room.vector(100).fill_(number) for number in range(5)]
    views = [held[0][10:20], held[1].view(10, 10), memoryview(held[2].numpy()), held[3].numpy()[::2]]
    del held[:4]
    gc.collect()
    fresh = [room.vector(100).fill_(9) for _ in range(5)]
    assert len({one.data_ptr() for one in (*fresh, *held)}) == 6
    assert [float(torch.as_tensor(view).reshape(-1)[0]) for view in views] == [0, 1, 2, 3]


def test_a_buffer_that_is_not_held_is_used_again() -> None:
    room = BufferPool(KEPT_MAX)
    first = room.vector(100)
    place = first.data_ptr()
    del first
    again = room.vector(90)
    assert again.data_ptr() == place
    assert len(again) == 90


@pytest.mark.parametrize("elements", [50, 101])
def test_memory_that_is_too_small_or_much_too_large_gives_way(elements: int) -> None:
    room = BufferPool(KEPT_MAX)
    many = [room.vector(100) for _ in range(KEPT_MAX)]
    many.clear()
    room.vector(elements)
    assert [len(memory) for memory in room._kept] == [4 * elements]


def test_no_more_is_kept_than_the_next_step_needs() -> None:
    room = BufferPool(KEPT_MAX)
    many = [room.vector(100) for _ in range(KEPT_MAX + 3)]
    many.clear()
    assert len(room._kept) == KEPT_MAX
