"""CPU time of processes with all their descendants, from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(roots: Collection[int]) -> float:
    """User and system time so far of these processes and whatever lives below them."""
    ticks, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = int(fields[11]) + int(fields[12])
    return sum(ticks[pid] for pid in ticks if below(pid, roots, parents)) / TICKS_PER_SECOND


def below(pid: int, roots: Collection[int], parents: dict[int, int]) -> bool:
    """Whether a process is one of `roots` or descends from one."""
    while pid not in roots:
        if pid not in parents:
            return False
        pid = parents[pid]
    return True
