"""A swarm of real processes with a temporary folder of its own, in which everything it leaves can be found; and peers
that are started one by one."""

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
        """Start `muster swarm` with a small run; all else as a user would have it."""
        config = self.folder / "run.toml"
        optimizer = "adamw8bit" if eight_bit else "adamw"  # the former takes a second longer to import
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
        """The first line from here on that holds `text`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r}:\n" + "".join(self.lines))

    def read_until_certified(self) -> None:
        """Until some versions are certified and training goes on."""
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
        """Everything that lives with our temporary folder in its environment."""
        mark = f"TMPDIR={self.folder}".encode()
        entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return [int(entry.name) for entry in entries if mark in _environment(entry)]

    def wait_for_processes(self, seconds: float) -> list[int]:
        """Who is still there after this time, or at once if nobody is."""
        deadline = time.monotonic() + seconds
        for pid in self.processes():
            _wait_for_end(pid, deadline)
        return self.processes()

    def left_behind(self) -> list[str]:
        """Files that a killed swarm must not leave: all but the user's gate and torch's own empty cache."""
        found = (path.relative_to(self.folder) for path in self.folder.rglob("*"))
        gate = Path(f"muster-{os.getuid()}")
        expected = {gate, gate / "lock", Path("run.toml"), Path("report.json")}
        return sorted(str(path) for path in found if path not in expected and "torchinductor" not in path.parts[0])


class Machines:
    """Peers that were started by hand, in one folder."""

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
        """What starts this on the machine of that name."""
        return list(words)

    def kill(self, name: str) -> None:
        """As kill -9; returns once it is gone."""
        self.processes[name].kill()
        self.processes[name].wait(30)

    def end(self, name: str) -> None:
        """As Ctrl-C: returns once it has saved and gone."""
        self.processes[name].send_signal(signal.SIGINT)
        assert self.processes[name].wait(ENDING_SECONDS) == 0, self.said(name)

    def end_all(self) -> None:
        """Whatever becomes of their work."""
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
        """Start one; returns its data folder."""
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
    """What a command says that ends with this code, in one line."""
    found = subprocess.run(
        [sys.executable, "-m", "peer.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == code, found.stdout + found.stderr
    return " ".join((found.stdout + found.stderr).split())


def version_of(now: PeerSnapshot) -> int:
    """Which every fragment has reached."""
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
    """As pytest's own, whose name is too long for sockets once it has run a hundred times."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    """Not started yet; after the test nothing of it may be left, in memory neither."""
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
