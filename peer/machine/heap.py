"""Memory that was freed: whether glibc keeps it or gives it back. With another C library nothing happens.

Standard library only: a learner calls this before it imports anything else.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

LARGE_BYTES = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def give_back_freed() -> None:
    """Hand it to the system, in some milliseconds.

    glibc keeps the large pieces that a model's pass frees, in as many places as they happened to lie: a host that
    evaluates now and then comes to hold them several times over. So whoever evaluates calls this afterwards, and
    whoever trains, with every checkpoint.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_large_pieces() -> None:
    """From now on, whenever one is freed.

    glibc gives back what is larger than the largest that was freed before, and so in the end nothing: a peer's
    fragments, each of another size, would lie in holes of each other's. To get them from the system each time costs a
    hundredth of what a round does with them.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def keep_freed_memory() -> None:
    """Let glibc keep what one step frees for the next: giving it back each time costs up to 6 % in page faults."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
