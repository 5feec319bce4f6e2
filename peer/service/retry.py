"""Coming back to a run while nobody answers: the network may only be gone for a while (design §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain, repeat
from typing import TypeVar

import structlog

from dht.errors import NetworkError

PAUSES_SECONDS = (1.0, 2.0, 5.0, 10.0)  # between attempts; the last one for ever

log = structlog.get_logger(__name__)
T = TypeVar("T")


async def come_back(join: Callable[[], Awaitable[T]], say: Callable[[str], None]) -> T:
    """`join` until somebody answers, or until cancelled; raises whatever it raises but NetworkError."""
    for pause in chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1])):
        try:
            return await join()
        except NetworkError as error:
            log.warning("nobody_answers", reason=str(error), again_in_seconds=pause)
            with suppress(OSError):  # a full disk behind our output, or nobody left to read it
                say(f"{error}; trying again in {pause:g} s")
        await asyncio.sleep(pause)
    raise AssertionError("the pauses never end")
