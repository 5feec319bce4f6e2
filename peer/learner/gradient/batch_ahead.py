"""The next batch on its way to a GPU while that still computes, from locked memory."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Batches(Protocol):
    """An endless data set that can be entered anywhere; `peer.data.windows.TrainingWindows` is one."""

    def batch(self, window: int) -> Tensor:
        """Tokens of one inner step: int64, shape (sequences, context_tokens + 1)."""
        ...


class BatchAhead:
    """Batches on a device, the one after the last ready before it is asked for; on the processor nothing is."""

    def __init__(self, batches: Batches, device: str) -> None:
        self._batches = batches
        self._device = torch.device(device)
        self._next: tuple[int, Tensor] | None = None

    def batch(self, window: int) -> Tensor:
        """Tokens of this window on the device; int64, shape (sequences, context_tokens + 1)."""
        if self._next is not None and self._next[0] == window:
            return self._next[1]
        return self._made(window)

    def prepare(self, window: int) -> None:
        """This window is the next one, most likely. Never waits for the device."""
        if self._device.type == "cuda":
            self._next = window, self._made(window)

    def _made(self, window: int) -> Tensor:
        batch = self._batches.batch(window)
        if self._device.type != "cuda":
            return batch
        return batch.pin_memory().to(self._device, non_blocking=True)
