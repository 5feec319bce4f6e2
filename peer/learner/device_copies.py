"""How fragments get from a learner's device to the memory that it shares with its peer, and back (design §6.2, §8).

For the processor both are the same memory, and nothing is ever under way. A GPU copies from and to locked memory by
itself, in a stream of its own, while steps go on in theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Arrival = Callable[[], bool]
"""Whether what was sent or fetched is there; never waits."""


def at_once() -> bool:
    """The arrival of what was never under way."""
    return True


class DeviceCopies:
    """Nothing has to be copied: the device reads and writes shared memory."""

    def room(self, shared: Tensor) -> Tensor:
        """Where to put what `send` shall bring into `shared`: as many elements, on the device."""
        return shared

    def send(self, values: Tensor, shared: Tensor) -> Arrival:
        """Bring what is in a `room` into `shared`, which is not to be read before it has arrived."""
        return at_once

    def fetch(self, *shared: Tensor) -> tuple[tuple[Tensor, ...], Arrival]:
        """These on the device, to be used when they have arrived; until then nobody may change `shared`."""
        return shared, at_once

    def wait(self) -> None:
        """Until everything has arrived."""


class StreamCopies(DeviceCopies):
    """Copies beside the steps of a GPU; memory that is not locked makes them slow, not wrong.

    What is made in one stream and used in the other is told to the allocator (`record_stream`), which would else give
    its memory away when we drop it.
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
