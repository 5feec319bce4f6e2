"""Measures the cost of admission: `python tests/bench/bench_door.py [--refusals 5] [--joins 5] [--before TREE]`.

A host of tests/real/run.toml runs on loopback. First, `muster join` is refused many times: with a line without a pass,
and with a withdrawn one. Prints the host's CPU time, less what it takes in the same time without calls, the CPU time of
the refused command, and the bytes between them. Then newcomers with a good invite join one after the other, each with
an empty folder. Prints the time from the start of the command to the first training step, and the CPU time until then.
With `--before`, newcomers of the other tree (with its own .venv) join a host of that tree in between, so that other
work on this machine disturbs both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.views.control import ask
from dht.addresses import PeerAddress
from dht.errors import LocalError, UsageError
from dht.invite import Invite
from tests.checkout import ROOT
from tests.real.conftest import RUN

QUIET_SECONDS = 30.0
WAIT_SECONDS = 300.0
LOOK_SECONDS = 0.02
SETTLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout, and the host that it runs."""

    root: Path
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a command with its own data folder."""
        python = self.root / ".venv/bin/python"
        command = [str(python if python.exists() else sys.executable), "-m", "peer.cli", *words]
        with (self.folder / f"{name}.txt").open("wb") as output:
            process = subprocess.Popen(
                [*command, "--data", str(self.folder / name), "--name", name],
                cwd=self.root,
                env={**os.environ, "TMPDIR": str(self.folder)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def host(self) -> subprocess.Popen[bytes]:
        (self.folder / "run.toml").write_text(RUN.format(versions=100_000, optimizer="adamw"))
        process = self.start("host", "host", str(self.folder / "run.toml"))
        self.wait("host", process, lambda now: now["state"] == "hosting")
        return process

    def invite(self, *limits: str) -> str:
        return str(ask(self.folder / "host", "invite", changes=limits)["invite"])

    def wait(self, name: str, process: subprocess.Popen[bytes], wanted: Callable[[Any], bool]) -> None:
        """Wait until the status of its peer is as wanted; the fields may be those of another version."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(LocalError, UsageError):  # not there yet
                if wanted(ask(self.folder / name, "status")["snapshot"]):
                    return
            time.sleep(LOOK_SECONDS)
        raise LocalError(f"{name} does not get there: {(self.folder / f'{name}.txt').read_text()}")


@contextmanager
def tree(root: Path) -> Iterator[Tree]:
    with tempfile.TemporaryDirectory() as folder:
        found = Tree(root, Path(folder))
        try:
            yield found
        finally:
            for process in found.started:
                end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a peer by two signals, so that it does not wait for its save."""
    if process.poll() is None:
        process.terminate()
        process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    process.kill()
    process.wait()


def busy_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and all its children, including those that have ended."""
    total = 0.0
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class Tap:
    """A port that forwards to another one, and counts the bytes."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.in_bytes = self.out_bytes = 0
        self._server: asyncio.Server

    async def open(self) -> int:
        """Open the port, and return its number."""
        self._server = await asyncio.start_server(self._lead, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._server.close()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._pass(reader, back, inwards=True), self._pass(there, writer, inwards=False))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, inwards: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self.in_bytes += len(data) * inwards
                self.out_bytes += len(data) * (not inwards)
                writer.write(data)
                await writer.drain()
        writer.close()


@dataclass(frozen=True, slots=True)
class Refused:
    """Mean figures of one refusal."""

    host_cpu_seconds: float
    own_cpu_seconds: float
    own_seconds: float
    in_bytes: float
    out_bytes: float

    def __str__(self) -> str:
        host, own = f"{1e3 * self.host_cpu_seconds:.0f} ms", f"{1e3 * self.own_cpu_seconds:.0f} ms"
        crossed = f"{self.in_bytes / 1e3:.1f} kB | {self.out_bytes / 1e3:.1f} kB"
        return f"{host} | {own} | {self.own_seconds:.1f} s | {crossed}"


async def refusals(here: Tree, host: int, line: str, count: int, idle_share: float) -> Refused:
    """Run `muster join` with this line so many times, each with its own folder and key."""
    invite = Invite.parse(line)
    address = invite.addresses[0].text.split("/")
    tap = Tap(int(address[4]))
    address[4] = str(await tap.open())
    line = str(replace(invite, addresses=(PeerAddress.parse("/".join(address)),)))
    began, busy, own_cpu = time.monotonic(), busy_seconds(host), 0.0
    for number in range(count):
        process = here.start(f"refused-{number}", "join", line, "--yes", "--threads", "1")
        _, status, usage = await asyncio.to_thread(os.wait4, process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 2:
            raise LocalError((here.folder / f"refused-{number}.txt").read_text())
        own_cpu += usage.ru_utime + usage.ru_stime
    own_seconds = time.monotonic() - began
    await asyncio.sleep(SETTLE_SECONDS)
    tap.close()
    seconds = time.monotonic() - began
    host_cpu = busy_seconds(host) - busy - idle_share * seconds
    return Refused(*(one / count for one in (host_cpu, own_cpu, own_seconds, tap.in_bytes, tap.out_bytes)))


def joined(here: Tree, number: int) -> tuple[float, float]:
    """Return the seconds from the command to the first training step, and the CPU seconds until then."""
    began = time.monotonic()
    name = f"newcomer-{number}"
    process = here.start(name, "join", here.invite(), "--yes", "--threads", "1", "--step-seconds", "0.05")
    here.wait(name, process, lambda now: now["steps"] > 0)
    found = time.monotonic() - began, busy_seconds(process.pid)
    end(process)
    return found


def row(name: str, found: Sequence[tuple[float, float]]) -> str:
    (seconds, cpu), every = map(statistics.median, zip(*found, strict=True)), [f"{one:.1f}" for one, _ in found]
    return f"| {name} | {seconds:.1f} s ({', '.join(every)}) | {cpu:.1f} s |"


def measure_refusals(here: Tree, count: int) -> None:
    """Print the cost of `count` commands with each kind of line that is refused."""
    host, nothing = here.started[0].pid, str(replace(Invite.parse(here.invite()), ticket=None))
    withdrawn = here.invite("note=gone")
    ask(here.folder / "host", "revoke", changes=("gone", ""))
    time.sleep(SETTLE_SECONDS)
    busy = busy_seconds(host)
    time.sleep(QUIET_SECONDS)
    idle_share = (busy_seconds(host) - busy) / QUIET_SECONDS
    print(f"the host alone takes {1e3 * idle_share:.0f} ms of a processor in a second")
    print("| line | CPU of the host | CPU of the refused | it takes | to the host | from the host |")
    print("| --- " * 6 + "|")
    for name, line in (("without a pass", nothing), ("withdrawn", withdrawn)):
        print(f"| {name} | {asyncio.run(refusals(here, host, line, count, idle_share))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refusals", type=int, default=5)
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--before", type=Path, help="checkout of another version, to compare joins with")
    options = parser.parse_args()
    with tree(ROOT) as here:
        here.host()
        if options.refusals:
            measure_refusals(here, options.refusals)
        with tree(options.before or ROOT) as other:
            trees = {"here": here}
            if options.before is not None:
                other.host()
                trees["before"] = other
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
            for number in range(options.joins):
                for name, one in trees.items():
                    found[name].append(joined(one, number))
            print(
                "| tree | from the command to the first step, median (each) | CPU until then, median |\n"
                + "| --- " * 3
                + "|"
            )
            print("\n".join(row(name, all_of) for name, all_of in found.items() if all_of))


if __name__ == "__main__":
    main()
