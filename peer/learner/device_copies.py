"""Copies of fragments between a learner's device and the memory it shares with its peer (design §6.2, §8).

On the CPU both are the same memory, so every copy has arrived at once. A GPU copies from and to locked memory by
itself, in a stream of its own, while steps continue in theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Arrival = Callable[[], bool]
"""Returns whether a copy has arrived; never waits."""


def at_once() -> bool:
    """Report the arrival of a copy that needed no time."""
    return True


class DeviceCopies:
    """Copies for a device that uses shared memory directly: nothing has to be copied."""

    def room(self, shared: Tensor) -> Tensor:
        """Return the tensor on the device that `send` will copy into `shared`; it has as many elements."""
        return shared

    def send(self, values: Tensor, shared: Tensor) -> Arrival:
        """Copy a tensor from `room` into `shared`, which must not be read before the copy has arrived."""
        return at_once

    def fetch(self, *shared: Tensor) -> tuple[tuple[Tensor, ...], Arrival]:
        """Return these tensors on the device, to be used after arrival; until then `shared` must not change."""
        return shared, at_once

    def wait(self) -> None:
        """Wait until all copies have arrived."""


class StreamCopies(DeviceCopies):
    """Copies that run beside the steps of a GPU; memory that is not locked makes them slow, not wrong.

    The allocator is told about each tensor that one stream makes and the other uses (`record_stream`). Otherwise it
    would reuse the memory as soon as we drop the tensor.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def room(self, shared: Tensor) -> Tensor:
        return torch.empty_like(shared, device=self._device)

    def send(self, values: Tensor, shared: Tensor) -> Arrival:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            shared.copy_(values, non_blocking=True)
        values.record_stream(self._stream)
        return self._arrival()

    def fetch(self, *shared: Tensor) -> tuple[tuple[Tensor, ...], Arrival]:
        with torch.cuda.stream(self._stream):
            fetched = tuple(one.to(self._device, non_blocking=True) for one in shared)
        for one in fetched:
            one.record_stream(torch.cuda.current_stream(self._device))
        return fetched, self._arrival()

    def wait(self) -> None:
        self._stream.synchronize()

    def _arrival(self) -> Arrival:
        event = self._stream.record_event()
        return lambda: bool(event.query())
