"""Fixtures of real processes: a swarm in its own temporary folder, and peers that are started one by one.

Everything that the swarm leaves is in its folder, so a test can find it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.views.control import ask, snapshot
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import LocalError, UsageError
from dht.identity import PeerId
from tests.checkout import ROOT

ENDING_SECONDS = 120.0
WAIT_SECONDS = 420.0
# Paced, so that cores do not decide who is fast.
RUN_FILE = Path(__file__).with_name("run.toml")
RUN = RUN_FILE.read_text().replace("= 16\n[model]", "= {versions}\n[model]").replace('"adamw"', '"{optimizer}"')


class Swarm:
    """One `muster swarm` and everything that it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.report_path = folder / "report.json"
        self.more = ""  # for the run file
        self.lines: list[str] = []
        self.process: subprocess.Popen[str]

    def start(self, peers: int, versions: int, *arguments: str, eight_bit: bool = False) -> None:
        """Start `muster swarm` with a small run, and all else as a user would."""
        config = self.folder / "run.toml"
        optimizer = "adamw8bit" if eight_bit else "adamw"  # which takes a second longer to import
        config.write_text(RUN.format(versions=versions, optimizer=optimizer) + self.more)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "peer.cli", "swarm", "--no-ui", "--config", str(config)),
                *("--peers", str(peers), "--report", str(self.report_path), "--step-seconds", "0.05", *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, text: str) -> str:
        """Read up to the next line that holds `text`, and return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r}:\n" + "".join(self.lines))

    def read_until_certified(self) -> None:
        """Read until some versions are certified and training goes on."""
        while self.read_until(" training, ").split("versions ")[1].startswith("0 "):
            pass

    def finish(self) -> dict[str, Any]:
        """Wait for a good end; returns the report."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        assert self.process.wait(ENDING_SECONDS) == 0, "".join(self.lines)
        report: dict[str, Any] = json.loads(self.report_path.read_text())
        return report

    def processes(self) -> list[int]:
        """Return the ids of the processes with our temporary folder in their environment."""
        mark = f"TMPDIR={self.folder}".encode()
        entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return [int(entry.name) for entry in entries if mark in _environment(entry)]

    def wait_for_processes(self, seconds: float) -> list[int]:
        """Wait up to this time for the processes to end; returns those still there."""
        deadline = time.monotonic() + seconds
        for pid in self.processes():
            _wait_for_end(pid, deadline)
        return self.processes()

    def left_behind(self) -> list[str]:
        """Return files that a killed swarm must not leave: all except the user's gate and torch's empty cache."""
        found = (path.relative_to(self.folder) for path in self.folder.rglob("*"))
        gate = Path(f"muster-{os.getuid()}")
        expected = {gate, gate / "lock", Path("run.toml"), Path("report.json")}
        return sorted(str(path) for path in found if path not in expected and "torchinductor" not in path.parts[0])


class Machines:
    """Peers that a test starts one by one, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = RUN.format(versions=100_000, optimizer="adamw")
        self.more: tuple[str, ...] = ()  # for every peer
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.txt").open("wb") as output:
            process = subprocess.Popen(
                self.command(name, sys.executable, "-m", *arguments),
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(self.folder)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes[name] = process
        return process

    def command(self, name: str, *words: str) -> list[str]:
        """Return the command that starts this on the machine of that name."""
        return list(words)

    def kill(self, name: str) -> None:
        """Kill a peer as kill -9 does; returns once it is gone."""
        self.processes[name].kill()
        self.processes[name].wait(30)

    def end(self, name: str) -> None:
        """End a peer as Ctrl-C does; returns once it has saved and gone."""
        self.processes[name].send_signal(signal.SIGINT)
        assert self.processes[name].wait(ENDING_SECONDS) == 0, self.said(name)

    def end_all(self) -> None:
        """End all processes at once; their work is not saved."""
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def peer(self, name: str, *arguments: str, program: str = "peer.cli") -> Path:
        """Start a peer; returns its data folder."""
        data = self.folder / name
        self.start(name, program, *arguments, "--data", str(data), "--name", name, *self.more)
        return data

    def host(self) -> Path:
        """Begin the run, and wait until others can join."""
        (self.folder / "run.toml").write_text(self.run)
        host = self.peer("host", "host", str(self.folder / "run.toml"))
        self.wait(host, lambda now: now.state == "hosting")
        return host

    def learner(self, name: str, invite: str, program: str = "peer.cli") -> Path:
        return self.peer(name, "join", invite, "--yes", "--threads", "1", "--step-seconds", "0.05", program=program)

    def id_of(self, data: Path) -> PeerId:
        return PeerId(self.wait(data, lambda now: True).peer_id)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    def wait(self, data: Path, wanted: Callable[[PeerSnapshot], bool]) -> PeerSnapshot:
        deadline = time.monotonic() + WAIT_SECONDS
        found = None
        while time.monotonic() < deadline:
            with suppress(LocalError, UsageError):  # not there yet
                found = snapshot(data)
                if wanted(found):
                    return found
            time.sleep(0.05)
        raise AssertionError(f"{data.name} does not get there: {found}\n{self.said(data.name)}")


def invite_of(data: Path) -> str:
    return str(ask(data, "invite")["invite"])


def muster(*words: str, code: int = 0) -> str:
    """Run a command that must end with this code; returns its output in one line."""
    found = subprocess.run(
        [sys.executable, "-m", "peer.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == code, found.stdout + found.stderr
    return " ".join((found.stdout + found.stderr).split())


def version_of(now: PeerSnapshot) -> int:
    """Return the version that every fragment has reached."""
    return min(one.version for one in now.fragments)


def _environment(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _wait_for_end(pid: int, deadline: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(descriptor)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a temporary folder. After a hundred runs, the name of pytest's own is too long for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    """Yield a swarm that is not started; after the test no process and no shared memory of it may be left."""
    shared_before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is too long for sockets
        swarm = Swarm(Path(folder))
        try:
            yield swarm
            assert swarm.process.poll() is not None
            assert swarm.wait_for_processes(ENDING_SECONDS) == []
            assert set(os.listdir("/dev/shm")) <= shared_before
        finally:
            for pid in swarm.processes():
                os.kill(pid, signal.SIGKILL)
            with swarm.process:  # closes its pipe and waits
                pass


@pytest.fixture
def machines() -> Iterator[Machines]:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is too long for sockets
        found = Machines(Path(folder))
        try:
            yield found
        finally:
            found.end_all()
