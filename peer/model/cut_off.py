"""What bfloat16 cuts off values in float32, without a loss, in three bytes each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

CUT_OFF_BYTES = 3  # of each value
_HIGH, _LOW = "cut_off_high", "cut_off_low"


class CutOff:
    """Of so many values in host memory; nothing at first.

    bfloat16 is the nearest number with 8 of a float32's 24 bits. What is left has no more than 15, so that the lowest
    byte of its own float32 is zero. Only of less than 2⁻¹²⁶ it is not, and there it is lost.
    """

    def __init__(self, elements: int, pinned: bool = False) -> None:
        high, low = (torch.zeros(elements, dtype=dtype) for dtype in (torch.int16, torch.uint8))
        self._high, self._low = (high.pin_memory(), low.pin_memory()) if pinned else (high, low)

    @classmethod
    def held_in(cls, state: Mapping[str, Tensor]) -> Self:
        """What such a state says, not copied; of no values where it says nothing."""
        held = cls(0)
        if _HIGH in state and _LOW in state:
            held._high, held._low = state[_HIGH], state[_LOW]
        return held

    def __len__(self) -> int:
        return len(self._high)

    def keep(self, part: slice, rest: Tensor) -> None:
        """This is what was cut off these values: float32, on any device."""
        self._high[part].copy_(rest.view(torch.int16)[1::2], non_blocking=True)
        self._low[part].copy_(rest.view(torch.uint8)[1::4], non_blocking=True)

    def of(self, part: slice, device: torch.device) -> Tensor:
        """What was cut off these values, in float32."""
        high, low = (one[part].to(device, non_blocking=True) for one in (self._high, self._low))
        rest = torch.zeros(len(high), device=device)
        rest.view(torch.int16)[1::2] = high
        rest.view(torch.uint8)[1::4] = low
        return rest

    def export_state(self) -> dict[str, Tensor]:
        """All of it, not copied."""
        return {_HIGH: self._high, _LOW: self._low}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `export_state` of as many values."""
        held = self.held_in(state)
        if len(held) == len(self):
            self._high.copy_(held._high)
            self._low.copy_(held._low)
