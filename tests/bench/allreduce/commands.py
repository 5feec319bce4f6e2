"""Processes that a benchmark drives: a command is one line of JSON, and so is its answer.

Times in answers are `time.monotonic()`, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ANSWER_SECONDS_MAX = 600.0  # eight peers that start on a busy machine take minutes
STOP_SECONDS_MAX = 20.0
LINE_BYTES_MAX = 1 << 20

Answer = dict[str, Any]
Handler = Callable[..., Awaitable[Answer]]


class Process:
    """A process that runs `serve`; started by `start`, ended by `stop`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
        checkout: Path | None = None,
    ) -> Process:
        """Start `python -m module arguments` in its own process group, with these environment variables added.

        `inside` is a prefix that runs the command somewhere else, as on another machine. `checkout` is the folder of
        the module.
        """
        process = await asyncio.create_subprocess_exec(
            *(*inside, sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            cwd=checkout,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Send a command; every one must be followed by `answer`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, **arguments}).encode() + b"\n")

    async def answer(self) -> Answer:
        """Return the next answer; raises RuntimeError if the process has ended, TimeoutError if it does not answer."""
        assert self._process.stdout is not None
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"process {self.pid} ended without an answer")
        answer: Answer = json.loads(line)
        return answer

    async def stop(self) -> None:
        """Let it end by itself, then kill the rest of its group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()


async def ask_all(processes: Sequence[Process], name: str, **arguments: Any) -> list[Answer]:
    """Send the same command to all at once; returns their answers in order."""
    for process in processes:
        process.tell(name, arguments)
    return [await process.answer() for process in processes]


async def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer commands from standard input until it is closed; all other output goes to standard error."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        answer = await handlers[command.pop("name")](**command)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
