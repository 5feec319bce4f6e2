"""What signals and commands have asked a peer's process for so far."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field

ALARM_SECONDS = 30  # past every other bound: then the kernel ends this process


@dataclass(slots=True)
class ShutdownRequests:
    """What signals and commands have asked for so far."""

    tethered: bool = False  # to a parent, whose death is a SIGTERM
    abandoned: bool = False
    drained: bool = False  # by a command, which leaves a peer that stays in place
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    again: asyncio.Event = field(default_factory=asyncio.Event)  # set by every signal but the first
    hurried: bool = False  # by a second signal, or a parent's death

    def on_signal(self, number: signal.Signals) -> None:
        """One more signal: first leave, then stop, and do without what is still being saved."""
        # getppid says nothing yet: a dying parent's other threads adopt us one after the other, each with a signal
        self.abandoned |= self.tethered and number is signal.SIGTERM
        if self.leave.is_set() or self.abandoned:
            signal.alarm(ALARM_SECONDS)
            self.hurried = True
            self.stop.set()
            self.again.set()
        self.leave.set()
