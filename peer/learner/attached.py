"""The peer's handle on a session that acts as its learner: the session is the process that started the peer."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from dht.errors import LocalError


@dataclass(slots=True)
class AttachedSession:
    """A session in place of a spawned learner (`peer.learner.spawn.LearnerEnd`); never ends the user's process."""

    connection: socket.socket
    slots_descriptor: int
    frozen: bytes = b""  # digest of the frozen parameters of the session's module

    @property
    def pid(self) -> int:
        """The process id of the session."""
        return os.getppid()

    def kill(self) -> None:
        """Close the connection to the session, whose next step then reports it."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def reap(self) -> int:
        """Return 0 at once: there is no child process to wait for."""
        return 0

    def ending(self, code: int) -> LocalError:
        """Return the error to raise when the session has closed its end without a proper leave."""
        return LocalError("the session that this peer belongs to has ended")

    def close(self) -> None:
        """Close the descriptor of the shared memory; existing mappings stay valid."""
        if self.slots_descriptor >= 0:
            os.close(self.slots_descriptor)
            self.slots_descriptor = -1
