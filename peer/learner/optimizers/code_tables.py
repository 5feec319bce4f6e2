"""The 256 values of bitsandbytes' 8-bit format: one table of each kind, shared by a whole process.

On the CPU, its library caches results for four tables, by their addresses. A fifth replaces the first, even while
another thread quantises with that one, and some codes come out wrong. bitsandbytes 0.50.2 failed in this way in 3 %
of the calls of three threads. A lab's learners step in parallel, so their optimizers share tables.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor


@cache
def code_table(*, signed: bool) -> Tensor:
    """Return float32[256] on the CPU, for values that may be negative (`signed`) or never are."""
    from bitsandbytes.functional import create_dynamic_map

    table: Tensor = create_dynamic_map(signed=signed)
    return table
