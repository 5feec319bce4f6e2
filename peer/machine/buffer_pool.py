"""Memory for long vectors, reused once they are garbage (docs/adr/0032)."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20  # on most processors; on others it only aligns the start
WASTE_MAX = 1.25  # fragments differ in length; a vector may occupy this many times its own length

Bytes = NDArray[np.uint8]


def new_vector(elements: int) -> Tensor:
    """Return float32[elements] on the CPU, with undefined content."""
    return torch.from_numpy(_memory(torch.float32.itemsize * elements).view(np.float32))


def _memory(size_bytes: int) -> Bytes:
    """Allocate new bytes, in huge pages if there are many.

    Otherwise its pages, allocated one by one, would cost several times as much as a subtraction of its elements. numpy
    asks the system for huge pages; neither torch nor Python does.
    """
    if size_bytes < HUGE_PAGE_BYTES:
        return np.empty(size_bytes, np.uint8)
    memory = np.empty(size_bytes + 2 * HUGE_PAGE_BYTES, np.uint8)  # untouched pages take no memory
    first = -memory.ctypes.data % HUGE_PAGE_BYTES
    return memory[first : first + size_bytes]


class BufferPool:
    """Hands out vectors, and keeps the memory of the last `kept_max` garbage ones for reuse.

    `kept_max` is the number that is needed at once: more would only occupy memory. Any thread may drop a vector at any
    moment, so each piece of memory is always in exactly one place.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept: deque[Bytes] = deque(maxlen=kept_max)

    def vector(self, elements: int) -> Tensor:
        """Return float32[elements] on the CPU, with undefined content."""
        memory = self._take(torch.float32.itemsize * elements)
        array = memory[: torch.float32.itemsize * elements].view(np.float32)
        weakref.finalize(array, self._kept.append, memory).atexit = False  # views of the tensor keep the array alive
        return torch.from_numpy(array)

    def _take(self, size_bytes: int) -> Bytes:
        """Take memory of a suitable size, and free unsuitable memory, which would only lie beside the new vector."""
        while True:
            try:
                memory = self._kept.popleft()
            except IndexError:
                return _memory(size_bytes)
            if size_bytes <= len(memory) <= WASTE_MAX * size_bytes:
                return memory
