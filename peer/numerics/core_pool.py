"""Runs independent pieces of arithmetic on several cores; numpy and hashing release Python's lock meanwhile.

The results do not depend on the number of cores: each piece is one function call, and the order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Cores:
    """A fixed number of threads; with one, everything runs in the calling thread."""

    def __init__(self, threads: int = 1) -> None:
        self._pool = one_core_each(threads, "round") if threads > 1 else None

    def each(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return the function's result for every item, in order; raises the error of the first item that fails.

        The function must not use the same cores itself: it would wait for its own thread.
        """
        if self._pool is None:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))

    def close(self) -> None:
        """End the threads once they have finished what was submitted."""
        if self._pool is not None:
            self._pool.shutdown()


def one_core_each(threads: int, name: str) -> ThreadPoolExecutor:
    """Create threads that multiply matrices on one core each.

    Unless set in each thread, MKL uses all cores, however few torch may use. For small matrices, as in merge rules, its
    threads then wait for each other longer than they compute, in busy loops.
    """
    return ThreadPoolExecutor(threads, name, torch.set_num_threads, (1,))


ONE_CORE = Cores()
