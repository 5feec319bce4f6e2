"""The number of cores that this process may keep busy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

SYS, PROC = Path("/sys"), Path("/proc")


def usable_cores(sys: Path = SYS, proc: Path = PROC) -> int:
    """Return the number of cores that it may run on, or fewer if it is given less CPU time; at least one.

    systemd's services and slices, containers and the containers around them may each limit the time.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_cores_in_groups(sys, proc)]))


def control_groups(controller: str, sys: Path, proc: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the control groups above us that limit this resource, and whether they are of version 1.

    From our own group to the outermost visible one; a container may see its own as the root.
    """
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            inner = PurePosixPath("/", group.lstrip("/"))
            for level in (inner, *inner.parents):
                if not controllers:
                    yield sys / "fs/cgroup" / str(level).lstrip("/"), False
                elif controller in controllers.split(","):
                    yield sys / "fs/cgroup" / controller / str(level).lstrip("/"), True


def _cores_in_groups(sys: Path, proc: Path) -> Iterator[int]:
    for folder, first_version in control_groups("cpu", sys, proc):
        with suppress(OSError, ValueError, ZeroDivisionError):  # no such level or file here, or the value `max`
            if first_version:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            else:
                quota, period = (folder / "cpu.max").read_text().split()
            if int(quota) >= 0:  # version 1 says -1 for no limit
                yield int(quota) // int(period)
