"""Requests to end a peer's process, from signals and commands."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field

ALARM_SECONDS = 30  # longer than every other bound; after so long the kernel ends this process


@dataclass(slots=True)
class ShutdownRequests:
    """The requests that signals and commands have made so far."""

    tethered: bool = False  # to a parent, whose death is a SIGTERM
    abandoned: bool = False
    drained: bool = False  # by a command; a peer with `stay` then goes on serving
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    again: asyncio.Event = field(default_factory=asyncio.Event)  # set by every signal but the first
    hurried: bool = False  # by a second signal, or a parent's death

    def on_signal(self, number: signal.Signals) -> None:
        """Take one more signal: the first asks to leave, the next to stop without waiting for a save."""
        # getppid says nothing yet: a dying parent's other threads adopt us one after the other, each with a signal
        self.abandoned |= self.tethered and number is signal.SIGTERM
        if self.leave.is_set() or self.abandoned:
            signal.alarm(ALARM_SECONDS)
            self.hurried = True
            self.stop.set()
            self.again.set()
        self.leave.set()
