"""Times how long processes of a peer or swarm remain after it is ended roughly: `python tests/bench/bench_ending.py`.

A host and three learners train as `muster swarm` starts them. One learner's peer gets Ctrl-C and drains, one is killed
with `kill -9`; the third and the host get Ctrl-C twice, the second one while they drain. The host of another swarm gets
Ctrl-C once, while its learners go on. Then a swarm is killed with `kill -9`. Two more get Ctrl-C as a terminal sends
it, to every process in the foreground: once, which drains all peers, and twice. Prints for each the number of processes
and the seconds from the last signal until all had ended; exits with 1 if any did not.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.views.control import snapshot
from dht.errors import MusterError
from peer.chaos.executor import family
from peer.swarm.run import HOST

PATIENCE_SECONDS = 600.0  # for a start, even on busy cores
ENDING_SECONDS_MAX = 60.0
LEARNERS = ("peer-1", "peer-2", "peer-3")
ENDING = ("draining", "finished")  # states of a peer that was told to leave


def states(root: Path) -> dict[str, str]:
    """Return the states of all processes that answer, by name."""
    found = {}
    for name in (HOST, *LEARNERS):
        with suppress(MusterError):
            found[name] = snapshot(root / name).state
    return found


def wait(root: Path, wanted: Callable[[dict[str, str]], bool]) -> None:
    """Wait until the peers' states are as wanted; raises SystemExit with the states if that takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not wanted(found := states(root)):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_SECONDS:g} s; the peers are {found}")
        time.sleep(0.02)


def start(root: Path) -> subprocess.Popen[bytes]:
    """Start a swarm in its own process group, and wait until it trains."""
    words = ("swarm", "--no-ui", "--peers", str(len(LEARNERS)), "--step-seconds", "0.2", "--data", str(root))
    command = [sys.executable, "-m", "peer.cli", *words]
    swarm = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True)
    wait(root, lambda found: all(found.get(name) == "training" for name in LEARNERS))
    return swarm


def seconds_until_gone(pids: Sequence[int], end: Callable[[], None]) -> float:
    """Call `end`, and time how long these processes remain; raises SystemExit with those still there."""
    with ExitStack() as stack:
        poll = select.poll()
        watched = {os.pidfd_open(pid): pid for pid in pids}
        for descriptor in watched:
            stack.callback(os.close, descriptor)
            poll.register(descriptor, select.POLLIN)
        end()
        ended = time.monotonic()
        while watched:
            gone = poll.poll(max(0.0, ended + ENDING_SECONDS_MAX - time.monotonic()) * 1000)
            if not gone:
                raise SystemExit(f"still there after {ENDING_SECONDS_MAX:g} s: {sorted(watched.values())}")
            for descriptor, _ in gone:
                poll.unregister(descriptor)
                del watched[descriptor]
        return time.monotonic() - ended


def twice(send: Callable[[], None], root: Path, *names: str) -> Callable[[], None]:
    """Return a function that sends Ctrl-C, and again once these peers drain; a peer that is gone has drained."""

    def end() -> None:
        send()
        wait(root, lambda found: all(found.get(name, ENDING[0]) in ENDING for name in names))
        with suppress(ProcessLookupError):
            send()

    return end


def show(what: str, pids: Sequence[int], end: Callable[[], None]) -> None:
    print(f"| {what} | {len(pids)} | {seconds_until_gone(pids, end):.2f} |", flush=True)


def single_peers(folder: Path) -> None:
    """End single peers, while the others go on."""
    swarm = start(folder)
    pids = {name: snapshot(folder / name).pid for name in (HOST, *LEARNERS)}
    show("a learner's peer, Ctrl-C once", family(pids["peer-3"]), lambda: os.kill(pids["peer-3"], signal.SIGINT))
    show("a learner's peer, kill -9", family(pids["peer-1"]), lambda: os.kill(pids["peer-1"], signal.SIGKILL))
    for name, what in (("peer-2", "a learner's peer"), (HOST, "the host")):
        ctrl_c = twice(lambda pid=pids[name]: os.kill(pid, signal.SIGINT), folder, name)
        show(f"{what}, Ctrl-C twice", family(pids[name]), ctrl_c)
    swarm.terminate()
    swarm.wait(ENDING_SECONDS_MAX)


def lone_host(folder: Path) -> None:
    """End the host, while its learners go on."""
    swarm = start(folder)
    pid = snapshot(folder / HOST).pid
    show("the host, Ctrl-C once", family(pid), lambda: os.kill(pid, signal.SIGINT))
    seconds_until_gone(family(swarm.pid), swarm.kill)
    swarm.wait()


def whole_swarms(first: Path, second: Path, third: Path) -> None:
    swarm = start(first)
    show("`muster swarm`, kill -9", family(swarm.pid), swarm.kill)
    swarm.wait()
    swarm = start(second)
    show("`muster swarm`, Ctrl-C once", family(swarm.pid), lambda: os.killpg(swarm.pid, signal.SIGINT))
    swarm.wait()
    swarm = start(third)
    ctrl_c = twice(lambda: os.killpg(swarm.pid, signal.SIGINT), third, *LEARNERS)
    show("`muster swarm`, Ctrl-C twice", family(swarm.pid), ctrl_c)
    swarm.wait()


def main() -> None:
    print("| what | processes | seconds until all are gone |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / one for one in "abcde"]
        single_peers(folders[0])
        lone_host(folders[1])
        whole_swarms(*folders[2:])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
