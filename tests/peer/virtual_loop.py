"""An event loop whose clock jumps: asyncio code that waits for hours runs in milliseconds, and deterministically."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without sockets or threads, where time passes only while nothing else can happen.

    Raises RuntimeError where a real loop would wait forever.
    """

    def __init__(self) -> None:
        self._now_seconds = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_seconds

    def jump(self, seconds: float) -> None:
        """Advance virtual time."""
        self._now_seconds += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left to happen on the virtual loop, and something still waits")
        if timeout > 0:
            self._loop.jump(timeout)
        return super().select(0)


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time, like `asyncio.run`, and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
