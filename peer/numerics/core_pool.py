"""Independent pieces of arithmetic on several cores: numpy and hashing leave Python's lock to others meanwhile.

What is computed does not depend on how many there are: each piece is one function's result, and they stay in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Cores:
    """So many threads; with one, everything happens where it is asked for."""

    def __init__(self, threads: int = 1) -> None:
        self._pool = one_core_each(threads, "round") if threads > 1 else None

    def each(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """What the function makes of every item, in order; raises what the first of them that fails raises.

        The function must not ask for cores itself: it would wait for its own.
        """
        if self._pool is None:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))

    def close(self) -> None:
        """End the threads, once they have done what was asked."""
        if self._pool is not None:
            self._pool.shutdown()


def one_core_each(threads: int, name: str) -> ThreadPoolExecutor:
    """Threads that multiply matrices by themselves.

    Without being told in each thread, MKL does so on all cores, however few torch may use. Where matrices are small,
    as those of rules are, its threads wait for each other longer than they compute, and they wait busily.
    """
    return ThreadPoolExecutor(threads, name, torch.set_num_threads, (1,))


ONE_CORE = Cores()
