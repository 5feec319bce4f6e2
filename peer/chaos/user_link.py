"""The process that is somebody's bad link (`peer.chaos.link`), as executors start, change and end it."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from dht.errors import LocalError
from peer.chaos.executor import LinkFault

START_SECONDS_MAX = 60.0  # in a container, say, on busy cores
END_SECONDS_MAX = 10.0


class UserLink:
    """It ends when this process does: that is the end of its orders."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def start(cls, command: Sequence[str]) -> Self:
        """`command` is `link.py` with its arguments, wherever that has to run. Raises LocalError."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is not for it
            )
        except OSError as error:
            raise LocalError(f"{command[0]} cannot be started: {error.strerror}") from None
        return cls(process)

    def shape(self, link: LinkFault) -> None:
        """Returns once the link is like that; raises LocalError, and is ended, if it cannot be."""
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
        """The link is a good one again. Returns the last line of what it had to complain of."""
        try:
            _, complaint = self._process.communicate(timeout=END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, complaint = self._process.communicate()
        return complaint.strip().rpartition("\n")[2]
