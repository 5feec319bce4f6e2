"""The next batch, copied to a GPU from locked memory while the GPU still computes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Batches(Protocol):
    """An endless data set that can be entered at any window, such as `peer.data.windows.TrainingWindows`."""

    def batch(self, window: int) -> Tensor:
        """Return the tokens of one inner step: int64, shape (sequences, context_tokens + 1)."""
        ...


class BatchAhead:
    """Batches on a device; a GPU gets the next one before it is requested, the CPU does not."""

    def __init__(self, batches: Batches, device: str) -> None:
        self._batches = batches
        self._device = torch.device(device)
        self._next: tuple[int, Tensor] | None = None

    def batch(self, window: int) -> Tensor:
        """Return the tokens of this window on the device: int64, shape (sequences, context_tokens + 1)."""
        if self._next is not None and self._next[0] == window:
            return self._next[1]
        return self._made(window)

    def prepare(self, window: int) -> None:
        """Start copying this window, as it is most likely the next one. Never waits for the device."""
        if self._device.type == "cuda":
            self._next = window, self._made(window)

    def _made(self, window: int) -> Tensor:
        batch = self._batches.batch(window)
        if self._device.type != "cuda":
            return batch
        return batch.pin_memory().to(self._device, non_blocking=True)
