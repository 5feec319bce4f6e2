"""A reader who types commands on their own machine: an empty home folder, and `muster` on the path."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from coordinator.views.control import snapshot
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import LocalError, UsageError

COMMAND_SECONDS_MAX = 900.0
READY_SECONDS_MAX = 300.0
POLL_SECONDS = 0.1


class Typed:
    """A typed command and its output."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str], said: Path) -> None:
        self.command = command
        self._said = said
        with said.open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the whole group, as in a terminal
            )

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def end(self) -> str:
        """Wait until it has ended well; returns its output."""
        try:
            code = self.process.wait(COMMAND_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"this does not end: {self.command}\n{self.said}") from None
        assert code == 0, f"this ends with {code}: {self.command}\n{self.said}"
        return self.said

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)
        self.end()

    def line(self, beginning: str) -> str:
        """Wait for the line that begins so, and return the rest of it."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            for line in self.said.splitlines(keepends=True):
                if line.startswith(beginning) and line.endswith("\n"):
                    return line[len(beginning) :].strip()
            assert self.process.poll() is None, f"this has ended: {self.command}\n{self.said}"
            select.select([], [], [], POLL_SECONDS)
        raise AssertionError(f"this never says {beginning!r}: {self.command}\n{self.said}")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Reader:
    """A reader who types commands in `folder`, with `folder`/`name` as home. Python finds packages in `folder`/site."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._home = folder / name
        self._home.mkdir()
        self._count = 0
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "PYTHON"))}
        self._environment = {
            **kept,
            "HOME": str(self._home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder / "site"),
            "TMPDIR": str(folder),
            "HF_HUB_OFFLINE": "1",
        }
        self.lasting: list[Typed] = []  # commands that run while others are typed

    @property
    def data(self) -> Path:
        return self._home / ".local/share/muster"

    def type(self, command: str) -> Typed:
        self._count += 1
        return Typed(command, self._folder, self._environment, self._home / f"said-{self._count}.txt")

    def begin(self, command: str) -> Typed:
        """Type a command that runs until it is ended."""
        self.lasting.append(self.type(command))
        return self.lasting[-1]

    def runs(self, beginning: str) -> bool:
        """Whether a lasting command that begins so is running."""
        return any(one.command.startswith(beginning) for one in self.lasting)

    def press_ctrl_c(self, beginning: str = "") -> None:
        """End the lasting commands that begin so."""
        for one in [one for one in self.lasting if one.command.startswith(beginning)]:
            self.lasting.remove(one)
            one.press_ctrl_c()

    def wait_for(self, beginning: str) -> None:
        """Wait until the lasting commands that begin so have ended by themselves."""
        for one in [one for one in self.lasting if one.command.startswith(beginning)]:
            self.lasting.remove(one)
            one.end()

    def until(self, wanted: Callable[[PeerSnapshot], bool]) -> None:
        """Wait until the peer here is as wanted."""
        deadline, found = time.monotonic() + READY_SECONDS_MAX, None
        while time.monotonic() < deadline:
            with suppress(LocalError, UsageError):  # not there yet
                found = snapshot(self.data)
                if wanted(found):
                    return
            select.select([], [], [], POLL_SECONDS)
        said = "\n".join(f"$ {one.command}\n{one.said}" for one in self.lasting)
        raise AssertionError(f"the peer of {self._home.name} does not get there: {found}\n{said}")

    def until_gone(self, process: int) -> None:
        """Wait until this process has ended."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process)
            try:
                assert select.select([descriptor], [], [], READY_SECONDS_MAX)[0]
            finally:
                os.close(descriptor)

    def kill(self) -> None:
        """Kill everything, after a failure."""
        with suppress(LocalError, UsageError, ProcessLookupError):
            os.kill(snapshot(self.data).pid, signal.SIGKILL)
        for one in self.lasting:
            one.kill()
