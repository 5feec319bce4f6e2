"""Runs several peers by one command, a process each. One failure does not end the others; ending this ends all."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dht.errors import LocalError
from peer.machine.exit_codes import EXIT_FAILED
from peer.machine.signals import ENDING, on_signals

LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class PeerChild:
    """A process to run, the name in front of each of its lines, and the line for its standard input, if any."""

    name: str
    command: tuple[str, ...]
    told: str = ""


async def run_several(children: Sequence[PeerChild], say: Callable[[str], None]) -> int:
    """Run all children until the last has ended; returns the highest exit code.

    A signal drains them as Ctrl-C does, a second one stops them. Raises LocalError if one cannot be started.
    """
    processes: dict[str, Process] = {}
    leaving = asyncio.Event()

    def end(_: signal.Signals) -> None:
        leaving.set()
        for process in processes.values():
            _interrupt(process)

    with on_signals((*ENDING, signal.SIGHUP), end):
        for child in children:
            if not leaving.is_set():
                processes[child.name] = await _started(child)
                if leaving.is_set():  # the signal came while this child started
                    _interrupt(processes[child.name])
        followed = [_followed(name, process, processes, say) for name, process in processes.items()]
        return max(await asyncio.gather(*followed), default=EXIT_FAILED)


def _interrupt(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)


async def _started(child: PeerChild) -> Process:
    try:
        process = await asyncio.create_subprocess_exec(
            *child.command,
            stdin=PIPE if child.told else DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C reaches only this process, which passes it on once
        )
    except OSError as error:
        raise LocalError(f"{child.name} cannot be started: {error.strerror}") from None
    if process.stdin is not None:
        process.stdin.write(child.told.encode() + b"\n")
        process.stdin.close()
    return process


async def _followed(name: str, process: Process, all_of_them: dict[str, Process], say: Callable[[str], None]) -> int:
    """Print a child's output with its name in front; returns its exit code once it has ended."""
    assert process.stdout is not None
    async for line in process.stdout:
        _try_to_say(say, f"{name}: {line.decode(errors='replace').rstrip()}")
    code = await process.wait()
    del all_of_them[name]
    if code:
        how = f"was ended by signal {-code}" if code < 0 else f"has failed with exit code {code}"
        _try_to_say(say, f"{name} {how}" + ("; the others go on" if all_of_them else ""))
    return EXIT_FAILED if code < 0 else code


def _try_to_say(say: Callable[[str], None], line: str) -> None:
    with suppress(OSError):  # a closed output is no reason to end
        say(line)
