"""Waiting for news, but not for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def pause(seconds: float, news: asyncio.Event) -> None:
    """Return when there is news, or after so many seconds.

    Not `asyncio.wait_for`: if the event comes with a cancellation, that returns as if nothing had been cancelled.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
