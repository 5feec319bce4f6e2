"""How a learner process is started, and how its end is explained. It imports nothing heavy, so that it starts first."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Protocol, Self

from dht.errors import LocalError

AUTO = "auto"  # as device: CUDA if it works and has room

LEARNER_PROGRAM = "peer.learner.process"
EXIT_SECONDS_MAX = 5.0
EXIT_LOST = 75  # EX_TEMPFAIL: another process that this one needs has ended
COMPLAINT_BYTES = 2000  # of the process's last output, which tells why it ended


class LearnerGoneError(LocalError):
    """The learner has ended; the part of the peer that still needed it is not at fault."""


class LearnerLostError(LearnerGoneError):
    """The learner, or a process of it, was ended from outside; a new learner may work."""


class LearnerEnd(Protocol):
    """The other end of a learner's socket: a process that we spawned, or a user's session."""

    connection: socket.socket

    @property
    def pid(self) -> int: ...
    @property
    def slots_descriptor(self) -> int: ...
    def kill(self) -> None: ...
    def reap(self) -> int: ...
    def ending(self, code: int) -> LocalError: ...
    def close(self) -> None: ...


def start_child(
    module: str, slots_descriptor: int, name: str
) -> tuple[subprocess.Popen[bytes], socket.socket, IO[bytes]]:
    """Run a module that inherits the shared memory and a socket; returns its process, our end, and its output file.

    Ctrl-C in the terminal reaches only this process, which then drains. Raises LocalError with `name` for the process.
    """
    ours, theirs = socket.socketpair()
    # a file instead of a pipe: nobody has to read it, and a full pipe would stop the child
    output = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
    inherited = (theirs.fileno(), slots_descriptor)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, (*inherited, os.getpid()))],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        output.close()
        raise LocalError(f"{name} cannot be started: {error.strerror}") from None
    finally:
        theirs.close()
    return process, ours, output


@contextmanager
def learner_ahead(program: str = LEARNER_PROGRAM) -> Iterator[LearnerSpawn]:
    """Yield a learner process that imports its modules while we do the same; ends it afterwards, used or not."""
    spawned = LearnerSpawn.begin(program)
    try:
        yield spawned
    finally:
        spawned.kill()
        spawned.reap()
        spawned.close()
        spawned.connection.close()


@dataclass(slots=True)
class LearnerSpawn:
    """A started process, our end of its socket, the unnamed file for its output, and shared memory."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    output: IO[bytes]
    slots: IO[bytes]

    @classmethod
    def begin(cls, program: str = LEARNER_PROGRAM) -> Self:
        """Start the process of this module, with shared memory that has no size yet; raises LocalError.

        Call it from a thread that lives as long as the learner shall: the kernel ends the learner with the thread.
        """
        slots = os.fdopen(os.memfd_create("muster-slots", os.MFD_CLOEXEC), "r+b", buffering=0)
        try:
            return cls(*start_child(program, slots.fileno(), "the learner process"), slots)
        except LocalError:
            slots.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of the learner."""
        return self.process.pid

    @property
    def slots_descriptor(self) -> int:
        """The descriptor of the shared memory."""
        return self.slots.fileno()

    @property
    def closed(self) -> bool:
        """Whether the process was used and has been closed since."""
        return self.slots.closed

    def kill(self) -> None:
        """End the process at once; `reap` waits until it is gone."""
        self.process.kill()

    def close(self) -> None:
        """Discard the output and the shared memory, once the process has ended."""
        self.output.close()
        self.slots.close()

    def reap(self) -> int:
        """Wait for a process that has closed its socket, and kill it if it does not end; returns its exit code."""
        for _ in range(2):
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(EXIT_SECONDS_MAX)
            self.process.kill()
        return -signal.SIGKILL  # it is stuck in the kernel, and ends when that returns

    def ending(self, code: int) -> LocalError:
        """Return the error that tells how the process ended by itself; `code` is that of `Popen.wait`."""
        if code == -signal.SIGKILL:
            return LearnerLostError("the learner process was killed, perhaps for want of memory")
        if code < 0:
            return LearnerLostError(f"the learner process ended by signal {-code}")
        line = last_line(self.output)
        if code == EXIT_LOST:
            return LearnerLostError(line)
        return LocalError(f"the learner process ended with exit code {code}" + (f": {line}" if line else ""))


def last_line(output: IO[bytes]) -> str:
    """Return the last line that a process wrote, to tell why it ended."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - COMPLAINT_BYTES))
    return (output.read().decode(errors="replace").strip().splitlines() or [""])[-1]
