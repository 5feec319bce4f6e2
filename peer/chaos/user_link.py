"""The process that emulates a bad link (`peer.chaos.link`), as executors start, change and end it."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from dht.errors import LocalError
from peer.chaos.executor import LinkFault

START_SECONDS_MAX = 60.0  # as in a container on busy cores
END_SECONDS_MAX = 10.0


class UserLink:
    """A link process; it ends when this process does, because its orders end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def start(cls, command: Sequence[str]) -> Self:
        """Start `command`, which is `link.py` with its arguments in the right place. Raises LocalError."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # keeps Ctrl-C away from it
            )
        except OSError as error:
            raise LocalError(f"{command[0]} cannot be started: {error.strerror}") from None
        return cls(process)

    def shape(self, link: LinkFault) -> None:
        """Change the link, and return once it is changed; if that fails, end the process and raise LocalError."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        with suppress(OSError):
            orders.write(f"{link.bits_per_second} {link.delay_seconds} {link.loss_share}\n")
            orders.flush()
            ready, _, _ = select.select([answers], [], [], START_SECONDS_MAX)
            if ready and answers.readline() == "ready\n":
                return
        raise LocalError(f"the link cannot be made: {self.end() or 'it does not answer'}")

    def end(self) -> str:
        """End the process, which restores the link; returns the last line of its errors."""
        try:
            _, complaint = self._process.communicate(timeout=END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, complaint = self._process.communicate()
        return complaint.strip().rpartition("\n")[2]
