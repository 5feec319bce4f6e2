"""Memory that a peer and its learner share: it carries fragments; everything else goes through the socket.

It has slots, each of which holds any one fragment in float32. Every command of the peer names the slots it uses: one
for a snapshot, which the learner writes; two for a new anchor and its reference, which the peer writes. The size
therefore follows from the rounds in flight, not from the model. The memory has no name in any file system, so nothing
is left behind however the processes end.

A session hands over a whole model when it begins a run, and takes one when it ends. The model lies behind the slots,
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
    """Return the number of slots of a run with this many rounds in flight."""
    return SLOTS_PER_ROUND * overlap


class SharedSlots:
    """Either end of the memory. The commands on the socket settle which end uses a slot, and when."""

    def __init__(self, descriptor: int, fragments: Sequence[FragmentLayout], overlap: int) -> None:
        """Map the memory behind `descriptor`; raises LocalError if it is smaller than these fragments need."""
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
        """Return new anonymous memory of zeros; raises LocalError if there is not enough."""
        descriptor = new_memory()
        try:
            return cls.behind(descriptor, fragments, overlap)
        except LocalError:
            os.close(descriptor)
            raise

    @classmethod
    def behind(cls, descriptor: int, fragments: Sequence[FragmentLayout], overlap: int) -> Self:
        """Return the memory behind `descriptor`, resized for these fragments.

        A model that was laid out there is lost. Raises LocalError if there is not enough memory.
        """
        size_bytes = slots_bytes(fragments, overlap)
        try:
            os.ftruncate(descriptor, size_bytes)
            os.posix_fallocate(descriptor, 0, size_bytes)  # else a later lack of memory is a signal, not an error
            return cls(descriptor, fragments, overlap)
        except OSError as error:
            raise LocalError(f"no shared memory of {size_bytes} bytes: {error.strerror}") from None

    def slot(self, index: int, fragment: int) -> Tensor:
        """Return a slot as a tensor for a fragment, float32[elements]; raises ValueError if there is no such slot."""
        if not 0 <= index < self.count:
            raise ValueError(f"there is no slot {index}")
        start = index * self._slot_elements
        return self._all[start : start + self._elements[fragment]]

    def lay_out(self, vectors: Iterable[Tensor]) -> None:
        """Write a whole model behind the slots: float32[elements] per fragment, in order. Raises LocalError."""
        start = self.size_bytes
        try:
            for vector in vectors:
                start += _write(self.descriptor, state_bytes(vector), start)
        except OSError as error:
            raise LocalError(f"no shared memory for a whole model: {error.strerror}") from None

    def laid_out(self) -> list[Tensor] | None:
        """Return the model that `lay_out` wrote; None if there is no whole model."""
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
        """Undo `pin` before the memory is freed: the driver would take other memory at its addresses for locked."""
        torch.cuda.cudart().cudaHostUnregister(self._all.data_ptr())  # type: ignore[no-untyped-call]

    def close_descriptor(self) -> None:
        """Close the descriptor; the mapping lives as long as tensors refer to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class FreeSlots:
    """The slots that a peer may use now, given out in the order of requests."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, count: int) -> tuple[int, ...]:
        """Wait for this many free slots and take them; `give_back` returns them."""
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
    """Return the descriptor of new shared memory, which has no size yet."""
    return os.memfd_create("muster-slots", os.MFD_CLOEXEC)


def slots_bytes(fragments: Sequence[FragmentLayout], overlap: int) -> int:
    """Return the bytes of all slots."""
    return slots_for(overlap) * FLOAT_BYTES * max(layout.elements for layout in fragments)


def _write(descriptor: int, data: memoryview, start: int) -> int:
    """Write all data, which may take several calls; returns the number of bytes."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], start + done)
    return done
