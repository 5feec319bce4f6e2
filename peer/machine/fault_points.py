"""Points of the protocol at which a trial has a peer die, or stand still until something has been done to the swarm.

Who stands still has a named pipe in its folder, and goes on as soon as somebody writes to it (`peer.chaos`).
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dht.errors import UsageError
from peer.machine.timed_wait import wait_for

FAULT_POINTS = (  # in the order of a round (`coordinator.simulator.faults`); roster, bundle, proposal: its leader
    *("join", "roster", "commit", "bundle", "scatter", "reduce"),
    *("result", "check", "proposal", "record", "vote", "adopt"),
)
GATE_NAME = "at-point"
GATE_SECONDS_MAX = 10.0  # then a peer goes on by itself; its watcher looks twice a second


@dataclass(slots=True)
class Fault:
    """What this process does when it comes to a named point of the protocol for the n-th time.

    `kill`: it dies, as of kill -9. `wait`: it stands still at a gate.
    """

    point: str
    left: int
    do: Literal["kill", "wait"] = "kill"
    gate: Path = Path(GATE_NAME)

    @classmethod
    def parse(cls, text: str, folder: Path = Path()) -> Fault:
        """`kill:POINT` or `kill:POINT:N`, and `wait:` likewise, with a gate in `folder`; raises UsageError."""
        kind, _, rest = text.partition(":")
        point, _, count = rest.partition(":")
        if point not in FAULT_POINTS or not (count or "1").isdecimal() or int(count or "1") < 1:
            kind = ""
        match kind:
            case "kill" | "wait":
                return cls(point, int(count or "1"), kind, folder / GATE_NAME)
        raise UsageError(
            f"{text!r} is no fault; write kill:POINT or kill:POINT:N with one of {', '.join(FAULT_POINTS)}"
        )

    def __str__(self) -> str:
        return f"{self.do}:{self.point}:{self.left}"

    def strikes(self, point: str) -> bool:
        """Whether it has to happen now."""
        if point != self.point:
            return False
        self.left -= 1
        return self.left == 0

    def strike(self) -> None:
        """Do it."""
        if self.do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        stand(self.gate)


def stand(gate: Path) -> None:
    """Do nothing until `release`, or for GATE_SECONDS_MAX. A folder where no gate can be made is passed at once."""
    new = gate.with_name(f".{gate.name}")
    with suppress(OSError):
        new.unlink(missing_ok=True)
        os.mkfifo(new, 0o600)
        descriptor = os.open(new, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            new.replace(gate)  # from now on it can be seen, and written to
            wait_for(descriptor, GATE_SECONDS_MAX)
        finally:
            gate.unlink(missing_ok=True)
            os.close(descriptor)


def stands(gate: Path) -> bool:
    """Whether a living peer stands at this gate."""
    return _write(gate, b"")


def release(gate: Path) -> None:
    """Let the peer at this gate go on; nobody need be there any more."""
    _write(gate, b"\n")


def _write(gate: Path, data: bytes) -> bool:
    """False if nobody reads there: a pipe that a killed peer has left cannot be opened for writing alone."""
    try:
        descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    return True
