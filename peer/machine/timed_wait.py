"""Waits for events and processes, but not for ever."""

from __future__ import annotations

import asyncio
import select
import subprocess
from contextlib import suppress


async def pause(seconds: float, news: asyncio.Event) -> None:
    """Return when `news` is set, or after this many seconds.

    Not `asyncio.wait_for`: if the event comes with a cancellation, that returns as if nothing had been cancelled.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()


def wait_for(descriptor: int, seconds: float | None, writable: bool = False) -> None:
    """Return when the descriptor is readable, or also writable if wanted, or after this time; None for no limit.

    Not `select.select`, which only takes descriptors below 1024: a peer has two sockets for each peer that it talks to.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | (select.POLLOUT if writable else 0))
    poll.poll(None if seconds is None else 1000 * seconds)


def end_within(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End this process and wait for it, by force after so long."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
