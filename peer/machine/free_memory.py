"""Memory available to a new process: what the machine has free, within the limits of all control groups above us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from peer.machine.cores import control_groups
from peer.machine.sensors import Places

_RECLAIMED = {"active_file", "inactive_file", "slab_reclaimable"}  # reclaimed when memory is needed
_RECLAIMED_V1 = {f"total_{name}" for name in ("active_file", "inactive_file")}


def free_memory_bytes(places: Places | None = None) -> int:
    """Return the free memory in bytes now. File pages that the system can reclaim count as free.

    systemd's scopes and slices, containers and the containers around them may each have a limit of their own.
    """
    found = places or Places()
    fields = dict(line.split(":", 1) for line in (found.proc / "meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    return min([free, *_free_in_groups(found)])


def _free_in_groups(places: Places) -> Iterator[int]:
    for folder, first_version in control_groups("memory", places.sys, places.proc):
        if first_version:
            yield from _free_in(folder, ("memory.limit_in_bytes",), "memory.usage_in_bytes", _RECLAIMED_V1)
        else:
            yield from _free_in(folder, ("memory.max", "memory.high"), "memory.current", _RECLAIMED)


def _free_in(folder: Path, limits: tuple[str, ...], usage: str, reclaimed: set[str]) -> Iterator[int]:
    for name in limits:
        with suppress(OSError, ValueError):  # no such level or file here, or the value `max`
            limit = int((folder / name).read_text())
            used = int((folder / usage).read_text())
            rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield limit - used + sum(int(row[1]) for row in rows if row[0] in reclaimed)
