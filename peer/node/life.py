"""The life of one peer: the tasks that run concurrently, how it ends, and its cleanup."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import structlog

from peer.machine.tasks import Tasks

log = structlog.get_logger(__name__)


class PeerLife:
    """From a peer's first part to its last. Parts push their cleanup on `closing`, which runs in reverse order."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.began_at = loop.time()
        self.tasks = Tasks(self.fail)
        self.closing = AsyncExitStack()
        self._over: asyncio.Future[None] = loop.create_future()

    @property
    def over(self) -> bool:
        """Whether this life has ended, well or not."""
        return self._over.done()

    @property
    def failed(self) -> bool:
        """Whether a part failed without which this peer cannot go on."""
        return self._over.done() and self._over.exception() is not None

    def fail(self, error: BaseException) -> None:
        """End this life with an error, because a part failed without which this peer cannot go on."""
        if not self._over.done():
            log.error("failed", error=str(error), exc_info=error)
            self._over.set_exception(error)
            self._over.exception()  # retrieved, so that asyncio does not warn about a peer that is not awaited

    def finish(self) -> None:
        """End this life successfully."""
        if not self._over.done():
            self._over.set_result(None)

    async def wait(self) -> None:
        """Wait for the end; raises MusterError if it failed."""
        await asyncio.shield(self._over)

    async def close(self) -> None:
        """Clean up every part, even if others fail. Safe to call twice."""
        await self.tasks.end()
        self.finish()
        await self.closing.aclose()
