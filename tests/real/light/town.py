"""Runs houses of light peers, each a process that can be killed, and takes in their events."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from peer.machine.log import LOG_NAME
from peer.swarm.processes import make_identity
from tests.checkout import ROOT

HOST = "host"
PATIENCE_SECONDS = 420.0
ENDING_SECONDS = 60.0
LOOK_SECONDS = 5.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Place = tuple[int, int]  # fragment and version
Line = dict[str, Any]


@dataclass(slots=True)
class Version:
    """Peers' reports of one version, or of several with one number if they disagree."""

    at: float  # of the first report, in seconds after the start
    digests: set[str] = field(default_factory=set)
    roster: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()  # the members that brought a cell's work
    minor: bool = False
    holders: set[str] = field(default_factory=set)
    workers: set[str] = field(default_factory=set)  # the peers that know their work is in it


@dataclass(slots=True)
class Usage:
    """Peak memory and processor time of all processes with `mark` in their environment."""

    mark: str
    memory_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by process

    def look(self) -> None:
        """Measure the processes that are there now."""
        memory_bytes, mark = 0, self.mark.encode()
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdecimal() or mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process has ended, or is another user's
                continue
            memory_bytes += int(fields[21]) * PAGE_BYTES
            self.seconds[entry.name] = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
        self.memory_bytes = max(self.memory_bytes, memory_bytes)


def log_folder(folder: Path, first: str) -> Path:
    """Return the log folder of the house whose first peer this is."""
    return folder / f"log-{first}"


class Town:
    """All houses, with the names of their peers; the host lives alone in the first."""

    def __init__(self, folder: Path, sizes: Sequence[int]) -> None:
        self.folder = folder
        self.peers = [
            [HOST],
            *([f"peer-{house}-{number}" for number in range(size)] for house, size in enumerate(sizes)),
        ]
        self.ids = {name: make_identity(folder / name) for names in self.peers[1:] for name in names}
        self.versions: dict[Place, Version] = {}
        self.joined: set[str] = set()
        self.ended: dict[str, Line] = {}
        self.usage = Usage(f"TMPDIR={folder}")
        self.began_at = time.monotonic()
        self._looked_at = self.began_at
        self._invite = ""
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._lines: queue.Queue[tuple[int, Line]] = queue.Queue()

    # -- houses

    def start(self) -> None:
        """Start the host, let all peers join, house after house, and then train."""
        for house in range(len(self.peers)):
            self._build(house, self.peers[house])
        self._invite = self.wait("invite")[1]["invite"]
        for house in range(1, len(self.peers)):
            self._join(house)
        for house in range(1, len(self.peers)):
            self._tell(house, "train")

    def come_back(self, house: int) -> None:
        """Start the peers of this house again, with the data that they have kept."""
        self.joined -= set(self.peers[house])
        self._build(house, self.peers[house])
        self._join(house)
        self._tell(house, "train")

    def _join(self, house: int) -> None:
        self._tell(house, self._invite)
        self.wait_until(lambda: self.joined >= set(self.peers[house]))

    def _tell(self, house: int, line: str) -> None:
        stdin = self._processes[house].stdin
        assert stdin is not None
        stdin.write(f"{line}\n")
        stdin.flush()

    def _build(self, house: int, names: list[str]) -> None:
        founders = ",".join(list(self.ids.values())[:PEERS_PER_GROUP_MAX])
        with (self.folder / f"house-{house}.txt").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.real.light.house", str(os.getpid()), str(self.folder), founders, *names],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._processes[house] = process
        Thread(target=self._read, args=(house, process), daemon=True).start()

    def _read(self, house: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for text in lines:
                self._lines.put((house, json.loads(text)))
        self._lines.put((house, {"event": "gone", "process": process}))

    def kill(self, house: int) -> None:
        """Kill a house as kill -9 does; its daemons end with it."""
        self.usage.look()
        self._processes[house].kill()
        self._ended(house)

    def _ended(self, house: int) -> int:
        """Forget a house's process, close its input, and return its exit code."""
        process = self._processes.pop(house)
        assert process.stdin is not None
        process.stdin.close()
        return process.wait(ENDING_SECONDS)

    def leave(self, *houses: int) -> None:
        """Let these houses leave, as on SIGTERM; returns when they have."""
        for house in houses:
            self._processes[house].terminate()
        self.wait_until(lambda: not self._processes.keys() & set(houses))

    def close(self) -> None:
        """Kill all houses."""
        for house in list(self._processes):
            self.kill(house)

    # -- what they say

    def wait(self, event: str, houses: Set[int] = frozenset({0})) -> tuple[int, Line]:
        """Wait for such an event from one of these houses, by default the host's; returns the house and the line."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            house, line = self._next()
            if line["event"] == event and house in houses:
                return house, line
        raise AssertionError(f"no line {event}; at {self.versions.keys()}")

    def wait_until(self, done: Callable[[], object]) -> None:
        """Take in events until `done`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, f"it does not come to that; at {self.versions.keys()}"
            self._next()

    def _next(self) -> tuple[int, Line]:
        if time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self.usage.look()
        try:
            house, line = self._lines.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return -1, {"event": "silence"}
        self._note(house, line)
        return house, line

    def _note(self, house: int, line: Line) -> None:
        match line["event"]:
            case "version":
                version = self._version(line)
                version.digests.add(line["digest"])
                version.holders.add(line["name"])
                version.roster, version.heads = frozenset(line["roster"]), frozenset(line["heads"])
                version.minor |= line["minor"]
            case "adopted" if line["worked"]:
                self._version(line).workers.add(line["name"])
            case "joined":
                self.joined.add(line["name"])
            case "end":
                self.ended[line["name"]] = line
            case "gone" if self._processes.get(house) is line["process"]:
                code = self._ended(house)
                assert code == 0, f"house {house}: {(self.folder / f'house-{house}.txt').read_text()}"

    def _version(self, line: Line) -> Version:
        place = line["fragment"], line["version"]
        return self.versions.setdefault(place, Version(time.monotonic() - self.began_at))

    def logged(self, event: str) -> list[Line]:
        """Return all log lines of this event, in order of time."""
        paths = (log_folder(self.folder, names[0]) / LOG_NAME for names in self.peers)
        lines = [json.loads(text) for path in paths for text in path.read_text().splitlines()]
        return sorted((line for line in lines if line["event"] == event), key=lambda line: str(line["timestamp"]))
