"""The memory, descriptors and CPU time of a peer's processes from Linux's /proc, and their growth."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.chaos.executor import family

OWN = ("Pss_Anon", "Pss_Shmem")  # pages of files are the kernel's to drop, and are shared with other programs
SECONDS_PER_HOUR = 3600.0
POINTS_MIN = 3  # for a line that has an error


@dataclass(frozen=True, slots=True)
class Reading:
    """One process of one peer at one time. Shared memory is divided among the processes that share it."""

    seconds: float  # since all peers train
    process: str  # `peer-1 learner`, for example
    memory_bytes: int
    descriptors: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares line through readings: its start, its growth per hour as a share, and the standard error."""

    start_bytes: float
    share_per_hour: float
    standard_error: float


def read_family(name: str, pid: int, seconds: float) -> list[Reading]:
    """Read the peer's process and all its descendants; processes with one role are added up."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for one in family(pid):
        with suppress(OSError):  # it has just ended
            entry = Path(f"/proc/{one}")
            found = (own_bytes(entry), len(os.listdir(entry / "fd")), cpu_seconds((entry / "stat").read_text()))
            role = "main" if one == pid else role_of((entry / "cmdline").read_bytes())
            totals[role] = [before + more for before, more in zip(totals[role], found, strict=True)]
    return [
        Reading(seconds, f"{name} {role}", int(memory), int(files), cpu)
        for role, (memory, files, cpu) in totals.items()
    ]


def own_bytes(entry: Path) -> int:
    """Return the bytes of memory that this process takes from others."""
    lines = (line.split() for line in (entry / "smaps_rollup").read_text().splitlines()[1:])
    sizes = {words[0].removesuffix(":"): int(words[1]) for words in lines}
    return 1024 * sum(sizes[kind] for kind in OWN)


def cpu_seconds(stat: str) -> float:
    """Return the CPU seconds of a process so far, over all threads, from its /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()  # the name, in brackets, may hold anything
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family_cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes so far, with all living descendants."""
    total = 0.0
    for pid in pids:
        for one in family(pid):
            with suppress(OSError):  # it has just ended
                total += cpu_seconds(Path(f"/proc/{one}/stat").read_text())
    return total


def role_of(command_line: bytes) -> str:
    """Return a short name for the role of a peer's child process."""
    words = command_line.decode(errors="replace").split("\0")
    if "peer.learner.process" in words:
        return "learner"
    return Path(words[0]).name or "unnamed"


def fit(points: Sequence[tuple[float, float]]) -> Line | None:
    """Fit a line to these (seconds, bytes); None if there are too few, or all at one time."""
    count = len(points)
    if count < POINTS_MIN:
        return None
    mean_x, mean_y = (sum(point[axis] for point in points) / count for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread or not mean_y:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    start = mean_y + slope * (min(x for x, _ in points) - mean_x)
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    error = (residual / (count - 2) / spread) ** 0.5
    return Line(start, slope * SECONDS_PER_HOUR / start, error * SECONDS_PER_HOUR / start)


def series(readings: Iterable[Reading], after_seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Return (seconds, bytes) of every process, and of every peer as a whole, from this time on."""
    found: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for one in readings:
        if one.seconds >= after_seconds:
            found[one.process][one.seconds] += one.memory_bytes
            found[one.process.partition(" ")[0]][one.seconds] += one.memory_bytes
    return {name: sorted(points.items()) for name, points in sorted(found.items())}
