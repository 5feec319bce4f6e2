"""Memory for long vectors, used again once nobody holds them (docs/adr/0032)."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20  # of most processors; with others it is only a place to begin at
WASTE_MAX = 1.25  # fragments differ in length; a vector may take so many times its own

Bytes = NDArray[np.uint8]


def new_vector(elements: int) -> Tensor:
    """float32[elements] on the CPU, with undefined content."""
    return torch.from_numpy(_memory(torch.float32.itemsize * elements).view(np.float32))


def _memory(size_bytes: int) -> Bytes:
    """So many new bytes; many of them in huge pages.

    Else its pages, which come one by one, would take several times as long as a subtraction of its elements. numpy
    asks the system for huge pages, neither torch nor Python does.
    """
    if size_bytes < HUGE_PAGE_BYTES:
        return np.empty(size_bytes, np.uint8)
    memory = np.empty(size_bytes + 2 * HUGE_PAGE_BYTES, np.uint8)  # nothing lies in what is not touched
    first = -memory.ctypes.data % HUGE_PAGE_BYTES
    return memory[first : first + size_bytes]


class BufferPool:
    """Hands out vectors, and keeps the memory of the last `kept_max` that have become garbage for the next ones.

    That is as many as are needed at once: more would only lie there.

    Any thread may let go of a vector at any moment, so memory is at every moment in one place only.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept: deque[Bytes] = deque(maxlen=kept_max)

    def vector(self, elements: int) -> Tensor:
        """float32[elements] on the CPU, with undefined content."""
        memory = self._take(torch.float32.itemsize * elements)
        array = memory[: torch.float32.itemsize * elements].view(np.float32)
        weakref.finalize(array, self._kept.append, memory).atexit = False  # whatever shares the tensor holds the array
        return torch.from_numpy(array)

    def _take(self, size_bytes: int) -> Bytes:
        """What does not fit goes: kept for a later vector, it would lie beside the new one."""
        while True:
            try:
                memory = self._kept.popleft()
            except IndexError:
                return _memory(size_bytes)
            if size_bytes <= len(memory) <= WASTE_MAX * size_bytes:
                return memory
