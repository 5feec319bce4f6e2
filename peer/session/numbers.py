"""The numbers that a user's loop reports: of Python, NumPy or torch, turned into those that a message can hold."""

from __future__ import annotations

import math
from typing import SupportsFloat, SupportsInt

from torch import Tensor

from coordinator.run.validation_errors import shown
from dht.errors import UsageError

_NO_NUMBER = (TypeError, ValueError, OverflowError, RuntimeError)  # of NumPy and torch, for what is not one number


def whole_number(value: SupportsInt, name: str) -> int:
    """Return a whole number as an int; raises UsageError if it is another value."""
    try:
        found = int(value)
        if found == value:
            return found
    except _NO_NUMBER:
        pass
    raise UsageError(f"{name} has to be a whole number, not {shown(value)}")


def finite_loss(value: SupportsFloat | None) -> float | None:
    """Return a loss as a float, or None if there is none or it is not finite; raises UsageError if it is no number."""
    if value is None:
        return None
    try:
        found = float(value.detach() if isinstance(value, Tensor) else value)
    except _NO_NUMBER:
        raise UsageError(f"loss has to be one number, not {shown(value)}; take the mean, or leave it out") from None
    return found if math.isfinite(found) else None
