"""A session's end of the socket, as the peer's process has it: the learner is the process that started us."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from dht.errors import LocalError


@dataclass(slots=True)
class AttachedSession:
    """Stands where a spawned learner would (`peer.learner.spawn.LearnerEnd`); never ends the user's process."""

    connection: socket.socket
    slots_descriptor: int
    frozen: bytes = b""  # names the parameters of the session's module that are not trained

    @property
    def pid(self) -> int:
        """The process of the session."""
        return os.getppid()

    def kill(self) -> None:
        """Let go of the session, whose next step then says so."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def reap(self) -> int:
        """There is nothing to wait for."""
        return 0

    def ending(self, code: int) -> LocalError:
        """The session has closed its end without leaving in order."""
        return LocalError("the session that this peer belongs to has ended")

    def close(self) -> None:
        """Let go of the shared memory; what is mapped of it stays."""
        if self.slots_descriptor >= 0:
            os.close(self.slots_descriptor)
            self.slots_descriptor = -1
