"""Controls the freed memory that this process keeps, and its maximum.

With another C library than glibc, freed memory stays where it is. Standard library only: a learner calls this before it
imports anything else.
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress

LARGE_BYTES = 8 << 20
KEPT_BYTES = 8 << 20  # free memory that stays at the end of a thread's heap
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

REFUSED = ("can't allocate memory", "std::bad_alloc", "Cannot allocate memory")  # torch, C++, libc


def give_back_freed() -> None:
    """Return freed memory to the system, within some milliseconds.

    glibc keeps the large blocks that a model's pass frees, wherever they were. A host that evaluates now and then would
    come to hold them several times over. So this is called after evaluations, and while training with every checkpoint.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_large_pieces() -> None:
    """From now on, return each large block to the system when it is freed.

    By default glibc returns only blocks larger than the largest freed before, so in the end none. A peer's fragments,
    each of another size, would lie in holes of each other's. Smaller blocks are kept for reuse. New pages for every
    piece of a codec's work, or for every part that is encoded or arrives, would cost several times as much as the
    writes to them.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def keep_freed_memory() -> None:
    """Let glibc keep what one step frees for the next: returning it each time costs up to 6 % in page faults."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def limit_memory(most_bytes: int) -> None:
    """Limit the private memory of this process to `most_bytes` from now on; a lower existing limit stays.

    Mapped files do not count: the kernel takes their pages back when others need them. Systems without this limit
    (`RLIMIT_DATA`) have none.
    """
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        known = [bytes_ for bytes_ in (most_bytes, soft, hard) if bytes_ != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))


def lift_memory_limit() -> None:
    """Lift the limit, so that a process that ends has memory to say why."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error says that memory was refused; torch uses a plain RuntimeError."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in REFUSED)
