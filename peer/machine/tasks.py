"""The tasks of a node: none outlives it, and somebody hears of every failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
Work = Coroutine[Any, Any, Result]


class Tasks:
    """Tasks that run until they are done or all are ended; `failed` hears of those that nobody waits for."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Work[Result]) -> asyncio.Task[Result]:
        """A task that somebody will wait for, and so hear of its failure."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def spawn(self, work: Work[Any]) -> None:
        """A task that nobody waits for."""
        self.begin(work).add_done_callback(self._told)

    async def end(self) -> None:
        """Cancel all and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # should nobody wait for it any more, that is no reason to warn

    def _told(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
