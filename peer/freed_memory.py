"""Memory that was freed and that the C library keeps all the same."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back_freed() -> None:
    """Hand it to the system, in some milliseconds; with another C library than glibc nothing happens.

    glibc keeps the large pieces that a model's pass frees, in as many places as they happened to lie: a host that
    evaluates now and then comes to hold them several times over.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
