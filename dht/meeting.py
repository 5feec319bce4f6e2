"""Calls to several peers at once, some of which may be gone; the answers do not wait for the silent ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

CALL_SECONDS_MAX = 5.0
GRACE_SECONDS = 0.5  # for peers that answer a little later than the first one


async def any_answers(calls: Iterable[Coroutine[Any, Any, bool]]) -> bool:
    """Return True `GRACE_SECONDS` after a call returns True, or once all are done; False if none returns True."""
    waiting = {asyncio.ensure_future(call) for call in calls}
    everybody = set(waiting)
    answered = False
    try:
        while waiting and not answered:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            answered = any(call.result() for call in done)
        if waiting:
            await asyncio.wait(waiting, timeout=GRACE_SECONDS)
        return answered
    finally:
        for call in everybody:
            call.cancel()
        await asyncio.gather(*everybody, return_exceptions=True)


async def answers(host: str, port: int) -> bool:
    """Whether something accepts a TCP connection there; nothing is sent."""
    try:
        async with asyncio.timeout(CALL_SECONDS_MAX):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
