"""One peer's life: the tasks that run beside each other, how it ends, and what is taken apart then."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import structlog

from peer.machine.tasks import Tasks

log = structlog.get_logger(__name__)


class PeerLife:
    """From the first part of a peer to its last. Parts put what takes them apart on `closing`; the last goes first."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.began_at = loop.time()
        self.tasks = Tasks(self.fail)
        self.closing = AsyncExitStack()
        self._over: asyncio.Future[None] = loop.create_future()

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self._over.done()

    @property
    def failed(self) -> bool:
        """Whether something broke that this peer cannot go on without."""
        return self._over.done() and self._over.exception() is not None

    def fail(self, error: BaseException) -> None:
        """Something that this peer cannot go on without is broken."""
        if not self._over.done():
            log.error("failed", error=str(error), exc_info=error)
            self._over.set_exception(error)
            self._over.exception()  # a peer that nobody waits for must not be warned about it

    def finish(self) -> None:
        """All is done."""
        if not self._over.done():
            self._over.set_result(None)

    async def wait(self) -> None:
        """Return when it is over; raises MusterError if it failed."""
        await asyncio.shield(self._over)

    async def close(self) -> None:
        """Take everything apart, each part whatever becomes of the others. Safe to call twice."""
        await self.tasks.end()
        self.finish()
        await self.closing.aclose()
