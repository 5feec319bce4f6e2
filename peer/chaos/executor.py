"""The places where peers of a chaos run live, and the faults possible there; on loopback, those that signals can cause.

Another place implements `Executor`, or `FaultInjector` if its peers are started elsewhere, as in containers.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dht.errors import LocalError
from peer.chaos.plan import Event, Kind
from peer.machine.clock import SKEW_FILE, write_skew
from peer.machine.fault_points import GATE_NAME, is_waiting, release
from peer.swarm.processes import PeerProcess

NETWORK_KINDS: frozenset[Kind] = frozenset({"partition", "heal", "delay", "loss", "bandwidth", "clear"})
MACHINE_KINDS: frozenset[Kind] = NETWORK_KINDS | {"clock_skew", "clock_right"}
"""Faults of the machine rather than a process, so that they hold for any process there."""
WAKE_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class LinkFault:
    """The faults of a peer's connection, each way."""

    delay_seconds: float = 0.0
    loss_share: float = 0.0
    bits_per_second: float = 0.0  # 0: no limit


Target_contra = TypeVar("Target_contra", contravariant=True)


class FaultInjector(Protocol[Target_contra]):
    """The faults that a place can cause; a Target is a running peer. All methods raise LocalError if they fail."""

    def refusal(self, event: Event) -> str | None:
        """Return why such an event is impossible here; None if it is possible."""
        ...

    def kill(self, peer: Target_contra) -> None: ...
    def stop(self, peer: Target_contra) -> None: ...
    def resume(self, peer: Target_contra) -> None: ...
    def limit_disk(self, peer: Target_contra, full: bool) -> None: ...
    def set_clock(self, peer: Target_contra, skew_seconds: float) -> None:
        """Shift the peer's wall clock by this from now on."""
        ...

    def is_waiting(self, peer: Target_contra) -> bool:
        """Whether the peer waits at a point of the protocol, until `release`."""
        ...

    def release(self, peer: Target_contra) -> None: ...
    def partition(self, sides: Sequence[Collection[str]]) -> None:
        """Cut the network; processes on no side belong to the first. Without sides, all reach each other."""
        ...

    def shape(self, name: str, link: LinkFault) -> None: ...


def refused(events: Collection[Event], place: FaultInjector[Any]) -> str:
    """Return which of these events are impossible there, a sentence for each reason; empty if all are possible."""
    kinds: dict[str, list[Kind]] = {}
    for event in events:
        if reason := place.refusal(event):
            kinds.setdefault(reason, []).append(event.do)
    return "\n".join(
        f"{len(found)} of this plan's {len(events)} events ({', '.join(sorted(set(found)))}) will not happen: {reason}"
        for reason, found in kinds.items()
    )


class Executor(FaultInjector[PeerProcess], Protocol):
    """A place on this machine that also starts peers; `open` raises UsageError if the place does not exist."""

    def open(self, names: Sequence[str]) -> None: ...
    def close(self) -> None: ...
    def start(self, name: str, data_directory: Path, arguments: Sequence[str], temporary: bool) -> PeerProcess: ...


class Loopback:
    """Processes of this machine that meet on 127.0.0.1, where the network never fails."""

    def __init__(self) -> None:
        self._asleep: dict[int, Sleep] = {}

    def open(self, names: Sequence[str]) -> None:
        pass

    def close(self) -> None:
        for sleep in self._asleep.values():
            sleep.end()
        self._asleep.clear()

    def refusal(self, event: Event) -> str | None:
        if event.do in NETWORK_KINDS:
            return "on loopback the network cannot fail; run as root with --netns"
        return None

    def start(self, name: str, data_directory: Path, arguments: Sequence[str], temporary: bool) -> PeerProcess:
        return PeerProcess.start(name, data_directory, arguments, temporary)

    def kill(self, peer: PeerProcess) -> None:
        """End the peer like kill -9: the kernel ends its daemon and learner with it."""
        peer.process.kill()
        self._wake(peer)  # a stopped child could not end

    def stop(self, peer: PeerProcess) -> None:
        """Stop the whole peer, as on a machine that sleeps."""
        self._asleep[peer.process.pid] = Sleep(family(peer.process.pid))

    def resume(self, peer: PeerProcess) -> None:
        self._wake(peer)

    def limit_disk(self, peer: PeerProcess, full: bool) -> None:
        """Simulate a full disk: until it is free again, no write of this process to a file succeeds."""
        for pid in family(peer.process.pid):
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))

    def set_clock(self, peer: PeerProcess, skew_seconds: float) -> None:
        """Write the offset to the file that a peer started with `--skew-file` reads."""
        write_skew(peer.data_directory / SKEW_FILE, skew_seconds)

    def is_waiting(self, peer: PeerProcess) -> bool:
        return is_waiting(peer.data_directory / GATE_NAME)

    def release(self, peer: PeerProcess) -> None:
        release(peer.data_directory / GATE_NAME)

    def partition(self, sides: Sequence[Collection[str]]) -> None:
        raise LocalError("there is no network to cut on loopback")

    def shape(self, name: str, link: LinkFault) -> None:
        raise LocalError("there is no network to shape on loopback")

    def _wake(self, peer: PeerProcess) -> None:
        sleep = self._asleep.pop(peer.process.pid, None)
        if sleep is not None:
            sleep.end()


class Sleep:
    """Processes that are stopped until `end`, or until this process dies.

    A stopped process cannot notice that its parent is gone. So a shell waits at the end of a pipe, and wakes them when
    the other end is closed.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -CONT "$@" 2>/dev/null', "sh", *map(str, pids)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # keeps Ctrl-C away from it
        )
        for pid in pids:  # the peer before its children, whose stop it would otherwise notice
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def end(self) -> None:
        """Let the processes continue; returns once they have been signalled."""
        self._guard.communicate(timeout=WAKE_SECONDS_MAX)


def family(pid: int) -> list[int]:
    """Return a process and its living descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has just ended
                # the name, in brackets, may contain anything; state and parent follow it
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found
