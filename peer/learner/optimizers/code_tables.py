"""What the 256 numbers of bitsandbytes' 8-bit format stand for: one table of each kind for a whole process.

On the processor its library keeps what it has worked out for four tables, by their addresses. A fifth takes the place
of the first, even while another thread quantises with that, and some codes come out wrong. A lab's learners step side
by side, so their optimizers share tables. bitsandbytes 0.50.2 failed so in 3 % of the calls of three threads.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor


@cache
def code_table(*, signed: bool) -> Tensor:
    """float32[256] on the processor, for values that may be negative or never are."""
    from bitsandbytes.functional import create_dynamic_map

    table: Tensor = create_dynamic_map(signed=signed)
    return table
