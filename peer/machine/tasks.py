"""The tasks of a node: none outlives it, and every failure is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
Work = Coroutine[Any, Any, Result]


class Tasks:
    """Tasks that run until they are done or all are ended; `failed` takes the errors of tasks that are not awaited."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Work[Result]) -> asyncio.Task[Result]:
        """Start a task that the caller will await, and return it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def spawn(self, work: Work[Any]) -> None:
        """Start a task that is not awaited."""
        self.begin(work).add_done_callback(self._told)

    async def end(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn if it is no longer awaited

    def _told(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
