"""Leftovers of processes that have ended, and the holdings of those that live."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.chaos.executor import family
from tests.bench.soak.memory import role_of

SHARED_MEMORY = Path("/dev/shm")
DESCRIPTOR_KINDS = ("socket", "pipe", "anon_inode")  # all others are files


def marked(mark: str) -> set[int]:
    """Return every other process with this mark in its environment, which children inherit."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has just ended
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found


def shared_memory() -> set[str]:
    """Return the names of all shared memory on this machine."""
    return set(os.listdir(SHARED_MEMORY))


def descriptors(pid: int) -> Counter[str]:
    """Count the open descriptors of a process by kind."""
    found: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            kind = os.readlink(link).partition(":")[0]
            found[kind if kind in DESCRIPTOR_KINDS else "file"] += 1
    return found


@dataclass(frozen=True, slots=True)
class Holdings:
    """The holdings of a swarm at one time: descriptors of each process, all processes, and shared memory."""

    descriptors: dict[str, Counter[str]]  # by process, `peer-1 p2pd`, and kind
    processes: int
    in_no_family: frozenset[int]  # whose peer is gone
    shared_memory: frozenset[str]


def holdings(pids: dict[str, int], mark: str) -> Holdings:
    """Return the holdings of these peers, given by name; `mark` is in the environment of all their processes."""
    found: dict[str, Counter[str]] = {}
    related: set[int] = set()
    for name, pid in pids.items():
        members = family(pid)
        related.update(members)
        for one in members:
            with suppress(OSError):
                role = "main" if one == pid else role_of(Path(f"/proc/{one}/cmdline").read_bytes())
                found.setdefault(f"{name} {role}", Counter()).update(descriptors(one))
    alive = marked(mark)
    return Holdings(found, len(alive), frozenset(alive - related), frozenset(shared_memory()))


def growth(before: Holdings, after: Holdings, names: tuple[str, ...]) -> dict[str, dict[str, list[int]]]:
    """Return the descriptors, before and after, by kind, of these peers' processes that live in both."""
    return {
        process: {kind: [counted[kind], after.descriptors[process][kind]] for kind in sorted(counted)}
        for process, counted in sorted(before.descriptors.items())
        if process.partition(" ")[0] in names and process in after.descriptors
    }
