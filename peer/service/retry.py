"""Retries joining a run while no peer answers: the network may be gone only for a while (design §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain, repeat
from typing import TypeVar

import structlog

from dht.errors import NetworkError

PAUSES_SECONDS = (1.0, 2.0, 5.0, 10.0)  # between attempts; the last one repeats

log = structlog.get_logger(__name__)
T = TypeVar("T")


async def retry_join(join: Callable[[], Awaitable[T]], say: Callable[[str], None]) -> T:
    """Call `join` until a peer answers or it is cancelled; raises every error of `join` except NetworkError."""
    for pause in chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1])):
        try:
            return await join()
        except NetworkError as error:
            log.warning("nobody_answers", reason=str(error), again_in_seconds=pause)
            with suppress(OSError):  # a full disk or a closed output is no reason to end
                say(f"{error}; trying again in {pause:g} s")
        await asyncio.sleep(pause)
    raise AssertionError("the pauses never end")
