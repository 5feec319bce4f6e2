"""Starts a peer in the background, in its own session, and leaves it once it answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coordinator.views.control import PeerNotRunningError, StartingError, UnreadyError, snapshot
from dht.errors import LocalError, MusterError, UsageError
from peer.machine.timed_wait import end_within

CONSOLE_NAME = "console.log"
CONSOLE_BYTES_MAX = 4 << 20  # a longer file begins anew with the next peer
START_SECONDS_MAX = 300.0  # imports take long on a small machine
END_SECONDS_MAX = 20.0
POLL_SECONDS = 0.3
LAST_OUTPUT_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Detached:
    """A peer in the background. `unready` is a sentence about what it still does; empty if it answers."""

    pid: int
    unready: str = ""


def start_detached(arguments: Sequence[str], line: str, data_directory: Path) -> Detached:
    """Run `muster ARGUMENTS` with `line` as its input; return once it answers, or takes long and says what it does.

    Raises UsageError or LocalError with the process' own message if it ends instead, or if a peer is there already;
    LocalError if it says nothing for too long, and ends it.
    """
    console = data_directory / CONSOLE_NAME
    _refuse_second(data_directory)
    try:
        data_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with console.open("ab") as output:
            if output.tell() > CONSOLE_BYTES_MAX:
                output.truncate(0)
                output.seek(0)
            begins = output.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "peer.cli", *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise LocalError(f"the peer cannot be started: {error.strerror}") from None
    assert process.stdin is not None
    with suppress(OSError), process.stdin:
        process.stdin.write(line.encode() + b"\n")
    unready = ""
    for _ in range(int(START_SECONDS_MAX / POLL_SECONDS)):
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(POLL_SECONDS)
            raise (UsageError if code == 2 else LocalError)(_last_output(console, begins, code))
        try:
            if snapshot(data_directory).pid == process.pid:  # and not another peer with this folder
                return Detached(process.pid)
        except MusterError as error:
            unready = str(error) if isinstance(error, StartingError) else ""
    if unready:
        return Detached(process.pid, unready)
    end_within(process, END_SECONDS_MAX)
    raise LocalError(f"the peer has not begun within {START_SECONDS_MAX:g} seconds; see {console} and `muster logs`")


def _refuse_second(data_directory: Path) -> None:
    """Raise UsageError if a peer runs with this folder, or what `snapshot` raises if it starts, ends or is silent."""
    try:
        snapshot(data_directory)
    except UnreadyError:
        raise
    except PeerNotRunningError:
        return
    raise UsageError(f"another muster process already runs with data directory {data_directory}; stop it first")


def _last_output(console: Path, begins: int, code: int) -> str:
    """Return the last line from this byte of the file on, or the exit code if there is none."""
    said = console.read_bytes()[begins:][-LAST_OUTPUT_BYTES:]
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the peer ended with exit code {code}"
