"""Points of the protocol at which a trial lets a peer die, or wait until the trial has changed the swarm.

A waiting peer has a named pipe in its folder, and goes on once the trial writes to it (`peer.chaos`).
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

FAULT_POINTS = (  # in the order of a round (`coordinator.simulator.faults`); roster, bundle, proposal: at its leader
    *("join", "roster", "commit", "bundle", "scatter", "reduce"),
    *("result", "check", "proposal", "record", "vote", "adopt"),
)
GATE_NAME = "at-point"
GATE_SECONDS_MAX = 10.0  # then the peer goes on by itself; the trial looks twice a second


@dataclass(slots=True)
class Fault:
    """A fault of this process when it reaches a named point of the protocol for the n-th time.

    `kill`: it dies, as from kill -9. `wait`: it waits at a gate.
    """

    point: str
    left: int
    do: Literal["kill", "wait"] = "kill"
    gate: Path = Path(GATE_NAME)

    @classmethod
    def parse(cls, text: str, folder: Path = Path()) -> Fault:
        """Parse `kill:POINT` or `kill:POINT:N`, or the same with `wait:` and a gate in `folder`; raises UsageError."""
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
        """Count a visit to this point; return whether the fault happens now."""
        if point != self.point:
            return False
        self.left -= 1
        return self.left == 0

    def strike(self) -> None:
        """Carry out the fault."""
        if self.do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        wait_at_gate(self.gate)


def wait_at_gate(gate: Path) -> None:
    """Wait until `release`, or for GATE_SECONDS_MAX; return at once in a folder where no gate can be made."""
    new = gate.with_name(f".{gate.name}")
    with suppress(OSError):
        new.unlink(missing_ok=True)
        os.mkfifo(new, 0o600)
        descriptor = os.open(new, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            new.replace(gate)  # from now on it can be seen and written to
            wait_for(descriptor, GATE_SECONDS_MAX)
        finally:
            gate.unlink(missing_ok=True)
            os.close(descriptor)


def is_waiting(gate: Path) -> bool:
    """Whether a living peer waits at this gate."""
    return _write(gate, b"")


def release(gate: Path) -> None:
    """Let the peer at this gate go on, if there is one."""
    _write(gate, b"\n")


def _write(gate: Path, data: bytes) -> bool:
    """Write to the gate. False if no process reads it: the pipe of a killed peer cannot be opened for writing alone."""
    try:
        descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    return True
