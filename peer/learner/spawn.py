"""Starting a learner process, and saying how it ended. Nothing heavy is imported: it is to start before all else."""

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

AUTO = "auto"  # the device: CUDA if that works and has room

LEARNER_PROGRAM = "peer.learner.process"
EXIT_SECONDS_MAX = 5.0
EXIT_LOST = 75  # EX_TEMPFAIL: a process that this one cannot do without has ended
COMPLAINT_BYTES = 2000  # of what the process wrote before it ended, to say why


class LearnerGoneError(LocalError):
    """The learner has ended; nothing is wrong with the part of the peer that still asked it for something."""


class LearnerLostError(LearnerGoneError):
    """The learner, or a process of it, was ended by somebody else; another one may do."""


class LearnerEnd(Protocol):
    """What is at the other end of a learner's socket: a process of ours, or a loop that has its own."""

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
    """Run a module that inherits the shared memory and a socket: its process, our end, and the file it writes to.

    Ctrl-C in the terminal is for us, who then drain. Raises LocalError, which calls the process `name`.
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
    """A learner process that imports what it needs while we do the same; gone at the end, used or not."""
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
    """A started process, our end of its socket, the unnamed file that it writes its output to, and shared memory."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    output: IO[bytes]
    slots: IO[bytes]

    @classmethod
    def begin(cls, program: str = LEARNER_PROGRAM) -> Self:
        """Start the process of this module, with shared memory that has no size yet; raises LocalError.

        Call it from a thread that lives as long as the learner shall: the kernel ends the learner with it.
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
        """The shared memory."""
        return self.slots.fileno()

    @property
    def closed(self) -> bool:
        """Whether somebody has used it, to its end."""
        return self.slots.closed

    def kill(self) -> None:
        """End the process at once; `reap` waits until it is gone."""
        self.process.kill()

    def close(self) -> None:
        """Forget what it wrote and what it shared; for when it has ended."""
        self.output.close()
        self.slots.close()

    def reap(self) -> int:
        """Wait for the process, which has closed its socket, and kill it if it does not end; returns its exit code."""
        for _ in range(2):
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(EXIT_SECONDS_MAX)
            self.process.kill()
        return -signal.SIGKILL  # it ends when what it waits for in the kernel answers

    def ending(self, code: int) -> LocalError:
        """The error that tells how the process ended unasked; `code` as `Popen.wait` returns it."""
        if code == -signal.SIGKILL:
            return LearnerLostError("the learner process was killed, perhaps for want of memory")
        if code < 0:
            return LearnerLostError(f"the learner process ended by signal {-code}")
        line = last_line(self.output)
        if code == EXIT_LOST:
            return LearnerLostError(line)
        return LocalError(f"the learner process ended with exit code {code}" + (f": {line}" if line else ""))


def last_line(output: IO[bytes]) -> str:
    """Of what a process wrote, to say why it ended."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - COMPLAINT_BYTES))
    return (output.read().decode(errors="replace").strip().splitlines() or [""])[-1]
