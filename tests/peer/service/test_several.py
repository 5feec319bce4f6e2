"""Several processes started by one command: their output, how they end, and that one does not end the others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dht.errors import LocalError
from peer.service import several
from peer.service.several import PeerChild, run_several

# blocked until it is waited for: one that came between a look and `signal.pause` would be waited for in vain
UNTIL_SIGNALS = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
for count in range(int(sys.argv[1])):
    signal.sigwait({signal.SIGINT})
    print("signal", count + 1, flush=True)
"""


def child(name: str, program: str, *arguments: str, told: str = "") -> PeerChild:
    return PeerChild(name, (sys.executable, "-c", program, *arguments), told)


def run(*children: PeerChild, on: Callable[[str], None] = lambda line: None) -> tuple[int, list[str]]:
    """Run the children; return the exit code and all lines, each of which is also passed to `on`."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        on(line)

    return asyncio.run(run_several(children, say)), lines


def test_every_line_has_its_name_and_the_worst_code_counts() -> None:
    code, lines = run(
        child("one", "import sys; print(sys.stdin.readline(), end=''); print('and', file=sys.stderr)", told="hello"),
        child("two", "raise SystemExit(2)"),
        child("three", "raise SystemExit(1)"),
    )
    assert code == 2
    assert [line for line in lines if line.startswith("one")] == ["one: hello", "one: and"]
    assert sum("two has failed with exit code 2" in line for line in lines) == 1
    assert sum(line.startswith("three") for line in lines) == 1


def test_one_that_is_killed_is_said_and_the_others_go_on() -> None:
    said: dict[str, str] = {}

    def on(line: str) -> None:
        name, _, words = line.partition(": ")
        said[name] = words
        if (said.get("two"), name in ("one", "two")) == ("ready", True) and "one" in said:
            os.kill(int(said["one"]), signal.SIGKILL)
        elif line.startswith("one was ended"):
            os.kill(os.getpid(), signal.SIGTERM)

    waits = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    code, lines = run(child("one", waits), child("two", UNTIL_SIGNALS, "1"), on=on)
    assert code == 1
    assert lines[-2:] == ["one was ended by signal 9; the others go on", "two: signal 1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_all_once_and_a_second_one_again(number: signal.Signals) -> None:
    """Like Ctrl-C: the first signal drains and the second stops, whichever signal it is."""
    seen: list[str] = []

    def on(line: str) -> None:
        seen.append(line.split(": ")[1])
        if seen in (["ready"] * 2, ["ready"] * 2 + ["signal 1"] * 2):
            os.kill(os.getpid(), number)

    code, _ = run(child("one", UNTIL_SIGNALS, "2"), child("two", UNTIL_SIGNALS, "2"), on=on)
    assert code == 0
    assert seen == ["ready"] * 2 + ["signal 1"] * 2 + ["signal 2"] * 2


def test_a_signal_reaches_one_that_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    started, handlers = several._started, list[Callable[[signal.Signals], None]]()

    @contextmanager
    def on_signals(_: object, handler: Callable[[signal.Signals], None]) -> Iterator[None]:
        handlers.append(handler)
        yield

    async def interrupted(child: PeerChild) -> Process:
        process = await started(child)
        handlers[0](signal.SIGINT)
        return process

    monkeypatch.setattr(several, "on_signals", on_signals)
    monkeypatch.setattr(several, "_started", interrupted)
    code, lines = run(PeerChild("one", ("sleep", "30")), PeerChild("two", ("sleep", "30")))
    assert code == 1
    assert lines == ["one was ended by signal 2"], "and another one is not even started"


def test_a_missing_reader_is_no_reason_to_end() -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError

    assert run(child("one", "print('hello')"), on=broken)[0] == 0


def test_a_child_that_cannot_be_started_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="one cannot be started: No such file or directory"):
        run(PeerChild("one", (str(tmp_path / "nothing"),)))
