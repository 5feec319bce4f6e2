"""The remainders that rounding float32 values to bfloat16 cuts off, kept without loss in three bytes each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

REMAINDER_BYTES = 3  # per value
_HIGH, _LOW = "cut_off_high", "cut_off_low"


class RoundingRemainders:
    """The remainders of a vector of values in host memory; zero at first.

    bfloat16 rounds to the nearest number with 8 of a float32's 24 bits. The remainder has at most 15, so the lowest
    byte of its own float32 is zero. That fails only for remainders below 2⁻¹²⁶, whose lowest byte is lost.
    """

    def __init__(self, elements: int, pinned: bool = False) -> None:
        high, low = (torch.zeros(elements, dtype=dtype) for dtype in (torch.int16, torch.uint8))
        self._high, self._low = (high.pin_memory(), low.pin_memory()) if pinned else (high, low)

    @classmethod
    def held_in(cls, state: Mapping[str, Tensor]) -> Self:
        """Return the remainders in such a state, not copied; empty if it has none."""
        held = cls(0)
        if _HIGH in state and _LOW in state:
            held._high, held._low = state[_HIGH], state[_LOW]
        return held

    def __len__(self) -> int:
        return len(self._high)

    def keep(self, part: slice, rest: Tensor) -> None:
        """Store `rest`, float32 on any device, as the remainders of the values in `part`."""
        self._high[part].copy_(rest.view(torch.int16)[1::2], non_blocking=True)
        self._low[part].copy_(rest.view(torch.uint8)[1::4], non_blocking=True)

    def of(self, part: slice, device: torch.device) -> Tensor:
        """Return the remainders of the values in `part`, in float32."""
        high, low = (one[part].to(device, non_blocking=True) for one in (self._high, self._low))
        rest = torch.zeros(len(high), device=device)
        rest.view(torch.int16)[1::2] = high
        rest.view(torch.uint8)[1::4] = low
        return rest

    def export_state(self) -> dict[str, Tensor]:
        """Return all remainders, not copied."""
        return {_HIGH: self._high, _LOW: self._low}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `export_state`, if it has the same number of values."""
        held = self.held_in(state)
        if len(held) == len(self):
            self._high.copy_(held._high)
            self._low.copy_(held._low)
