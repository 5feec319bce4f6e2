"""The processes of a swarm on this machine: real `muster host` and `muster join`, each with its own data directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dht.errors import LocalError, MusterError, UsageError
from dht.identity import Identity, PeerId
from peer.machine.log import LOG_NAME
from peer.machine.paths import IDENTITY_NAME

CONSOLE_NAME = "console.log"
LAST_OUTPUT_BYTES = 2000
KILLED_SECONDS_MAX = 10.0


@dataclass(slots=True)
class PeerProcess:
    """One started peer. Its output goes to a file, which needs no reader and may outlive this process."""

    name: str
    data_directory: Path
    process: subprocess.Popen[bytes]
    temporary: bool = False  # whether its data directory is deleted when the swarm ends
    _kept_log: Path | None = None

    @classmethod
    def start(
        cls,
        name: str,
        data_directory: Path,
        arguments: Sequence[str],
        temporary: bool = False,
        inside: Sequence[str] = (),
    ) -> Self:
        """Run `muster ARGUMENTS` with this data directory; it ends when the calling thread does. Raises LocalError.

        `inside` is a prefix that runs the command somewhere else, such as `ip netns exec NAME`.
        """
        common = ("--data", str(data_directory), "--stay", "--die-with-parent", str(os.getpid()))
        data_directory.mkdir(parents=True, exist_ok=True)
        try:
            with (data_directory / CONSOLE_NAME).open("wb") as console:
                process = subprocess.Popen(
                    [*inside, sys.executable, "-m", "peer.cli", *arguments, *common],
                    stdin=subprocess.PIPE,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches only the swarm, which then drains
                )
        except OSError as error:
            raise LocalError(f"{name} cannot be started: {error.strerror}") from None
        return cls(name, data_directory, process, temporary)

    def tell(self, line: str) -> None:
        """Write a line to its standard input and close that; does nothing if the peer has died."""
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.write(line.encode() + b"\n")
        self.close_input()

    def close_input(self) -> None:
        """Close its standard input."""
        if self.process.stdin is not None:
            with suppress(OSError):  # unwritten bytes have no reader any more
                self.process.stdin.close()

    @property
    def exit_code(self) -> int | None:
        """Its exit code: None while it runs, negative if a signal ended it."""
        return self.process.poll()

    def has_ended(self, seconds: float) -> bool:
        """Whether it ends within this time."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.exit_code is not None

    def last_output(self) -> str:
        """Say how it ended: the signal that killed it, or the last line it printed."""
        code = self.exit_code
        if code is not None and code < 0:
            return f"ended by signal {-code}"
        with (self.data_directory / CONSOLE_NAME).open("rb") as console:
            console.seek(max(0, console.seek(0, os.SEEK_END) - LAST_OUTPUT_BYTES))
            lines = console.read().decode(errors="replace").strip().splitlines()
        return self._with_lasting_log(lines[-1]) if lines else f"ended with exit code {code}"

    def _with_lasting_log(self, words: str) -> str:
        """Keep a copy of a log that the words name and that is deleted with the swarm, and name the copy instead."""
        log = self.data_directory / LOG_NAME
        if not self.temporary or str(log) not in words:
            return words
        if self._kept_log is None:
            self._kept_log = Path(tempfile.mkdtemp(prefix="muster-crash-")) / LOG_NAME
            shutil.copy(log, self._kept_log)
        return words.replace(str(log), str(self._kept_log))

    def failure(self) -> MusterError:
        """Return its end as an error: UsageError for exit code 2, else LocalError."""
        return (UsageError if self.exit_code == 2 else LocalError)(self.last_output())


def make_identity(data_directory: Path) -> PeerId:
    """Make the key of a peer with this data directory, if it has none; returns its peer id."""
    return Identity.load_or_create(data_directory / IDENTITY_NAME).peer_id


def end_all(processes: Sequence[PeerProcess], patience_seconds: float) -> list[str]:
    """Wait for the processes, then send SIGTERM, then kill them; returns the names of the killed ones."""
    _wait(processes, patience_seconds)
    for peer in processes:
        if peer.exit_code is None:
            peer.process.terminate()
    _wait(processes, patience_seconds)
    killed = [peer for peer in processes if peer.exit_code is None]
    kill_all(killed)
    return [peer.name for peer in killed]


def kill_all(processes: Sequence[PeerProcess]) -> None:
    """End the processes at once; the kernel ends their daemons and learners with them."""
    for peer in processes:
        if peer.exit_code is None:
            peer.process.kill()
    _wait(processes, KILLED_SECONDS_MAX)
    for peer in processes:
        peer.close_input()


def _wait(processes: Sequence[PeerProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for peer in processes:
        peer.has_ended(max(0.0, deadline - time.monotonic()))
