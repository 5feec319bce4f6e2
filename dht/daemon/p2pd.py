"""The libp2p daemon as a child process: started, watched, stopped, and never left behind."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import resource
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

from dht.daemon import tether
from dht.daemon.ports import port_taken
from dht.errors import LocalError, MusterError

STARTUP_SECONDS = 60.0  # hivemind's 15 s are too short for a loaded home machine
STOP_SECONDS_MAX = 5.0
OUTPUT_LINES_KEPT = 20
DATA_BYTES_MAX = 1 << 30
FILES_MAX = 4096  # each connection needs one, and each of our own streams another
GARBAGE_PERCENT = "25"  # heap growth before Go collects garbage; its default, 100, takes 40 % more in a crowd
_READY = "Peer ID:"


def hivemind_folder() -> Path:
    """Return the folder where hivemind is installed, without importing it; raises LocalError if it is not."""
    package = importlib.util.find_spec("hivemind")
    if package is None or not package.submodule_search_locations:
        raise LocalError("hivemind is not installed; set Muster up again with: make install")
    return Path(package.submodule_search_locations[0])


def binary_path() -> Path:
    """Return the path of the daemon in hivemind's wheel; raises LocalError if hivemind is not installed."""
    return hivemind_folder() / "hivemind_cli" / "p2pd"


class DaemonProcess:
    """One running p2pd. The kernel kills it when the thread that started it dies (see `dht.daemon.tether`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES_KEPT)
        self._ready = asyncio.Event()
        self._reader = asyncio.create_task(self._read_output())

    @classmethod
    async def start(cls, arguments: list[str], timeout_seconds: float, binary: Path | None = None) -> DaemonProcess:
        """Start p2pd and wait until it listens.

        Raises UsageError (a port is taken) or LocalError (anything else).
        """
        program = str(binary or binary_path())
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), program),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not reach it: a drain still needs the network
                env={**os.environ, "GOGC": GARBAGE_PERCENT},
            )
        except OSError as error:
            raise LocalError(f"cannot start a process for the libp2p daemon: {error.strerror}") from None
        daemon = cls(process)
        try:
            _bound(process.pid)
            await daemon._wait_ready(timeout_seconds)
        except BaseException:
            await daemon.stop()
            raise
        return daemon

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the operating system has the process running."""
        return self._process.returncode is None

    async def stop(self) -> None:
        """End the process: terminate it, and kill it if it does not end in time."""
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._reader

    async def _read_output(self) -> None:
        """Drain the pipe for ever: a daemon whose output nobody reads would block."""
        stream = self._process.stdout
        if stream is None:
            raise RuntimeError("the daemon was started without a pipe")
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line over the stream's limit; its rest comes next
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            if text.startswith(_READY):
                self._ready.set()

    async def _wait_ready(self, timeout_seconds: float) -> None:
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, self._reader}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._ready.is_set():
            return
        if self._reader.done():
            raise _start_error("\n".join(self._lines))
        raise LocalError(
            f"the libp2p daemon did not start within {timeout_seconds:g} seconds; is this machine overloaded?"
        )


def _bound(pid: int) -> None:
    """Have the kernel limit memory and open files, which libp2p does not (docs/adr/0057); lower limits stay."""
    with suppress(ProcessLookupError):  # it has ended; its output says why
        for what, most in ((resource.RLIMIT_DATA, DATA_BYTES_MAX), (resource.RLIMIT_NOFILE, FILES_MAX)):
            allowed = resource.prlimit(pid, what)[1]
            limit = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
            resource.prlimit(pid, what, (limit, limit))


def _start_error(output: str) -> MusterError:
    """Turn the output of a p2pd that ended while starting into an error that says whose fault it is."""
    if taken := re.search(r":(\d+): bind: address already in use", output):
        return port_taken(int(taken[1]))
    if "cannot run" in output:
        return LocalError(f"the libp2p daemon does not run on this machine ({output.strip()}); reinstall hivemind")
    reason = output.strip().splitlines()[-1] if output.strip() else "it printed nothing"
    return LocalError(f"the libp2p daemon ended while starting: {reason}")
