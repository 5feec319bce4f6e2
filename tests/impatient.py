"""A display whose reader has had enough, and says so again and again."""

from __future__ import annotations

import os
import signal

from peer.swarm.watch import SwarmWatch


class Impatient:
    """Sends this process the signals `numbers`, in turn, whenever something is shown."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers
        self.phases: list[str] = []

    def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None:
        self.phases.append(phase)
        for number in self.numbers:
            os.kill(os.getpid(), number)
