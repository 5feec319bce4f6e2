"""Memory that a peer and its learner share: fragments cross here, everything else through the socket.

It has slots, each of which takes any fragment in float32. The peer says with every command which slots it is about: one
for a snapshot, which the learner writes, two for a new anchor and what it is measured against, which the peer writes.
So it has the size of what is in flight, and not of the model. It has no name in any file system, so nothing is left
behind however the processes end.

A session hands over a whole model when it begins a run, and takes one when it ends: it is laid out behind the slots,
only for as long as that takes.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Self

import torch
from torch import Tensor

from dht.errors import LocalError
from peer.numerics.fragments import FLOAT_BYTES, FragmentLayout
from peer.numerics.outer_optimizer import state_bytes

SLOTS_PER_ROUND = 3  # a snapshot out, an anchor in, a reference in


def slots_for(overlap: int) -> int:
    """How many slots a run with so many rounds in flight has."""
    return SLOTS_PER_ROUND * overlap


class SharedSlots:
    """Both ends of the memory. The commands on the socket settle who may use a slot, and when."""

    def __init__(self, descriptor: int, fragments: Sequence[FragmentLayout], overlap: int) -> None:
        """Map the memory behind `descriptor`; raises LocalError if it is less than these fragments need."""
        self.descriptor = descriptor
        self.count = slots_for(overlap)
        self._elements = [layout.elements for layout in fragments]
        self._slot_elements = max(self._elements)
        self.size_bytes = slots_bytes(fragments, overlap)
        if os.fstat(descriptor).st_size < self.size_bytes:
            raise LocalError("the shared memory has not the size of this model")
        mapped = mmap.mmap(descriptor, self.size_bytes)
        self._all = torch.frombuffer(mapped, dtype=torch.float32, count=self.count * self._slot_elements)

    @classmethod
    def create(cls, fragments: Sequence[FragmentLayout], overlap: int) -> Self:
        """New anonymous memory of zeros; raises LocalError if there is not enough."""
        descriptor = new_memory()
        try:
            return cls.behind(descriptor, fragments, overlap)
        except LocalError:
            os.close(descriptor)
            raise

    @classmethod
    def behind(cls, descriptor: int, fragments: Sequence[FragmentLayout], overlap: int) -> Self:
        """The memory behind `descriptor`, which gets the size that these fragments need.

        What was laid out there is gone. Raises LocalError if there is not enough memory.
        """
        size_bytes = slots_bytes(fragments, overlap)
        try:
            os.ftruncate(descriptor, size_bytes)
            os.posix_fallocate(descriptor, 0, size_bytes)  # a later lack of memory would be a signal, not an error
            return cls(descriptor, fragments, overlap)
        except OSError as error:
            raise LocalError(f"no shared memory of {size_bytes} bytes: {error.strerror}") from None

    def slot(self, index: int, fragment: int) -> Tensor:
        """This slot as room for a fragment, float32[elements]; raises ValueError if there is no such slot."""
        if not 0 <= index < self.count:
            raise ValueError(f"there is no slot {index}")
        start = index * self._slot_elements
        return self._all[start : start + self._elements[fragment]]

    def lay_out(self, vectors: Iterable[Tensor]) -> None:
        """Leave a whole model behind the slots: float32[elements] per fragment, in order. Raises LocalError."""
        start = self.size_bytes
        try:
            for vector in vectors:
                start += _write(self.descriptor, state_bytes(vector), start)
        except OSError as error:
            raise LocalError(f"no shared memory for a whole model: {error.strerror}") from None

    def laid_out(self) -> list[Tensor] | None:
        """What lies there, as `lay_out` took it; None if that is not a whole model."""
        total_bytes = FLOAT_BYTES * sum(self._elements)
        if os.fstat(self.descriptor).st_size < self.size_bytes + total_bytes:
            return None
        mapped = mmap.mmap(self.descriptor, self.size_bytes + total_bytes)
        whole = torch.frombuffer(mapped, dtype=torch.float32, offset=self.size_bytes)
        return list(torch.split(whole, self._elements))

    def pin(self) -> None:
        """Lock the memory so that a GPU copies from and to it by itself; raises LocalError if the driver refuses."""
        size_bytes = FLOAT_BYTES * len(self._all)
        code = int(torch.cuda.cudart().cudaHostRegister(self._all.data_ptr(), size_bytes, 0))  # type: ignore[no-untyped-call]
        if code:
            raise LocalError(f"the GPU's driver does not lock {size_bytes} bytes of host memory: error {code}")

    def unpin(self) -> None:
        """Undo `pin`, before the memory goes: the driver would take other memory at its addresses for locked."""
        torch.cuda.cudart().cudaHostUnregister(self._all.data_ptr())  # type: ignore[no-untyped-call]

    def close_descriptor(self) -> None:
        """Give up the descriptor; the mapping lives as long as tensors refer to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class FreeSlots:
    """Which slots a peer may use now; who comes first gets them first."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, count: int) -> tuple[int, ...]:
        """So many of them, to be given back."""
        async with self._turn:
            while len(self._free) < count:
                self._freed.clear()
                await self._freed.wait()
            taken, self._free = self._free[:count], self._free[count:]
            return tuple(taken)

    def give_back(self, slots: Iterable[int]) -> None:
        self._free.extend(slots)
        self._freed.set()


def new_memory() -> int:
    """The descriptor of shared memory that has no size yet."""
    return os.memfd_create("muster-slots", os.MFD_CLOEXEC)


def slots_bytes(fragments: Sequence[FragmentLayout], overlap: int) -> int:
    """What all slots take."""
    return slots_for(overlap) * FLOAT_BYTES * max(layout.elements for layout in fragments)


def _write(descriptor: int, data: memoryview, start: int) -> int:
    """All of it, which one call need not take; returns how much that is."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], start + done)
    return done
