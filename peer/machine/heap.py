"""What this process keeps of memory that it freed, and the most that it may take.

With another C library than glibc, freed memory stays where it is.

Standard library only: a learner calls this before it imports anything else.
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress

LARGE_BYTES = 8 << 20
KEPT_BYTES = 8 << 20  # of what is free at the end of a thread's heap
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

REFUSED = ("can't allocate memory", "std::bad_alloc", "Cannot allocate memory")  # torch, C++, libc


def give_back_freed() -> None:
    """Hand it to the system, in some milliseconds.

    glibc keeps the large pieces that a model's pass frees, in as many places as they happened to lie: a host that
    evaluates now and then comes to hold them several times over. So this is called after evaluations, and while
    training with every checkpoint.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_large_pieces() -> None:
    """From now on, whenever one is freed.

    glibc gives back what is larger than the largest that was freed before, and so in the end nothing: a peer's
    fragments, each of another size, would lie in holes of each other's. What is smaller stays for the next: pages that
    come anew with every piece of a codec's work, or with every part that is encoded or arrives, would cost several
    times as much as what is written there.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def keep_freed_memory() -> None:
    """Let glibc keep what one step frees for the next: giving it back each time costs up to 6 % in page faults."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def limit_memory(most_bytes: int) -> None:
    """From now on this process gets at most `most_bytes` of private memory; a ceiling that is lower already stays.

    Mapped files do not count: the kernel takes their pages back when others need them. Systems that do not know the
    limit (`RLIMIT_DATA`) have none.
    """
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        known = [bytes_ for bytes_ in (most_bytes, soft, hard) if bytes_ != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))


def lift_memory_limit() -> None:
    """Let a process that ends say why: that takes memory, too."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this says that memory was refused; torch says so by a plain RuntimeError."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in REFUSED)
