"""Whether a process that is starting is alive: it reports, computes, or reads, however long it takes."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class StallDetector:
    """Measures how long a sign has not changed. Time comes with every look."""

    limit_seconds: float
    _sign: Hashable = None
    _since: float | None = None

    def look(self, sign: Hashable, now: float) -> bool:
        """Whether it has been too long; `sign` differs after every sign of life."""
        if self._since is None or sign != self._sign:
            self._sign, self._since = sign, now
        return now - self._since > self.limit_seconds


def work_done(process: int, proc: Path = Path("/proc")) -> tuple[int, int]:
    """Return the ticks of CPU time that a process has used, and the bytes it has read; zeros where unknown."""
    ticks = read = 0
    with suppress(OSError, ValueError, IndexError):
        fields = (proc / str(process) / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # utime and stime, counted from the state on
    with suppress(OSError, ValueError, KeyError):
        lines = (proc / str(process) / "io").read_text().splitlines()
        read = int(dict(line.split(": ") for line in lines)["rchar"])
    return ticks, read
