from __future__ import annotations

import subprocess
import sys

import pytest

from peer.machine.heap import is_out_of_memory

PROGRAM = """
import resource
from peer.machine.heap import lift_memory_limit, limit_memory
limit_memory(200 << 20)
limit_memory(400 << 20)  # a higher one changes nothing
bytearray(50 << 20)
try:
    bytearray(300 << 20)
except MemoryError:
    print("refused")
lift_memory_limit()
bytearray(300 << 20)
print("given")
"""


def test_the_kernel_refuses_what_is_beyond_the_limit_until_it_is_lifted() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\ngiven\n"


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
            True,
        ),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("shape mismatch"), False),
    ],
)
def test_each_librarys_word_for_refused_memory_is_known(error: Exception, memory: bool) -> None:
    assert is_out_of_memory(error) is memory
