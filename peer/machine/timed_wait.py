"""Waiting for news, but not for ever."""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress


async def pause(seconds: float, news: asyncio.Event) -> None:
    """Return when there is news, or after so many seconds.

    Not `asyncio.wait_for`: if the event comes with a cancellation, that returns as if nothing had been cancelled.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()


def wait_for(descriptor: int, seconds: float | None, writable: bool = False) -> None:
    """Return when it can be read, or written where that is wanted, or after so long; None: however long it takes.

    Not `select.select`, which knows descriptors below 1024 only: a peer has two sockets for each that it talks to.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | (select.POLLOUT if writable else 0))
    poll.poll(None if seconds is None else 1000 * seconds)
