"""Memory that a peer and its learner share: parameters cross here, everything else through the socket.

Three planes of float32, each holding all fragments in order: `outgoing` (snapshots, written by the learner), `incoming`
and `reference` (a new anchor and what it is measured against, written by the peer). The memory has no name in any file
system, so nothing is left behind however the processes end.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from dht.errors import LocalError
from peer.model.build import SHARED_PLANES
from peer.numerics.fragments import FLOAT_BYTES, FragmentLayout, fragment_views


class SharedPlanes:
    """Both ends of the memory. Whoever may write a region, and when, is settled by the commands on the socket."""

    def __init__(self, descriptor: int, fragments: Sequence[FragmentLayout]) -> None:
        """Map the memory behind `descriptor`; raises LocalError if it has not the size of these fragments."""
        self.descriptor = descriptor
        elements = sum(layout.elements for layout in fragments)
        plane_bytes = elements * FLOAT_BYTES
        if os.fstat(descriptor).st_size != SHARED_PLANES * plane_bytes:
            raise LocalError("the shared memory has not the size of this model")
        mapped = mmap.mmap(descriptor, SHARED_PLANES * plane_bytes)
        planes = [
            torch.frombuffer(mapped, dtype=torch.float32, count=elements, offset=plane * plane_bytes)
            for plane in range(SHARED_PLANES)
        ]
        self.all_incoming = planes[1]
        self._outgoing, self._incoming, self._reference = (fragment_views(plane, fragments) for plane in planes)

    @classmethod
    def create(cls, fragments: Sequence[FragmentLayout]) -> Self:
        """New anonymous memory of zeros; raises LocalError if there is not enough."""
        descriptor = os.memfd_create("muster-planes", os.MFD_CLOEXEC)
        try:
            return cls.behind(descriptor, fragments)
        except LocalError:
            os.close(descriptor)
            raise

    @classmethod
    def behind(cls, descriptor: int, fragments: Sequence[FragmentLayout]) -> Self:
        """The memory behind `descriptor`, which gets the size of these fragments if nobody has given it one.

        Raises LocalError if there is not enough memory, or if it has another size.
        """
        size_bytes = SHARED_PLANES * FLOAT_BYTES * sum(layout.elements for layout in fragments)
        try:
            if os.fstat(descriptor).st_size == 0:
                os.posix_fallocate(descriptor, 0, size_bytes)  # a later lack of memory would be a signal, not an error
            return cls(descriptor, fragments)
        except OSError as error:
            raise LocalError(f"no shared memory of {size_bytes} bytes: {error.strerror}") from None

    def outgoing(self, fragment: int) -> Tensor:
        """The last snapshot of this fragment, float32[elements]."""
        return self._outgoing[fragment]

    def incoming(self, fragment: int) -> Tensor:
        """The new anchor of this fragment, float32[elements]."""
        return self._incoming[fragment]

    def reference(self, fragment: int) -> Tensor:
        """What the new anchor's change is measured against, float32[elements]."""
        return self._reference[fragment]

    def pin(self) -> None:
        """Lock the memory so that a GPU copies from and to it by itself; raises LocalError if the driver refuses."""
        start, size_bytes = self._outgoing[0].data_ptr(), SHARED_PLANES * FLOAT_BYTES * len(self.all_incoming)
        code = int(torch.cuda.cudart().cudaHostRegister(start, size_bytes, 0))  # type: ignore[no-untyped-call]
        if code:
            raise LocalError(f"the GPU's driver does not lock {size_bytes} bytes of host memory: error {code}")

    def unpin(self) -> None:
        """Undo `pin`, before the memory goes: the driver would take other memory at its addresses for locked."""
        torch.cuda.cudart().cudaHostUnregister(self._outgoing[0].data_ptr())  # type: ignore[no-untyped-call]

    def close_descriptor(self) -> None:
        """Give up the descriptor; the mapping lives as long as tensors refer to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
