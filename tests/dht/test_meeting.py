"""Calling several peers at once."""

from __future__ import annotations

import asyncio

import pytest

from dht.meeting import GRACE_SECONDS, any_answers
from tests.peer.virtual_loop import run_virtual


async def answer(after_seconds: float, says: bool, answered: list[float]) -> bool:
    await asyncio.sleep(after_seconds)
    answered.append(after_seconds)
    return says


async def call(*calls: tuple[float, bool]) -> tuple[bool, list[float], float]:
    """What came of it, who could answer, and how long it took."""
    answered: list[float] = []
    found = await any_answers(answer(seconds, says, answered) for seconds, says in calls)
    return found, answered, asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("calls", "found", "answered", "seconds"),
    [
        ([], False, [], 0.0),
        ([(3.0, False), (5.0, False)], False, [3.0, 5.0], 5.0),
        ([(60.0, False), (1.0, True), (1.2, True)], True, [1.0, 1.2], 1.0 + GRACE_SECONDS),
        ([(1.0, False), (2.0, True)], True, [1.0, 2.0], 2.0),
        ([(60.0, True), (1.0, False), (4.0, True)], True, [1.0, 4.0], 4.0 + GRACE_SECONDS),
    ],
)
def test_a_caller_does_not_wait_for_silent_peers(
    calls: list[tuple[float, bool]], found: bool, answered: list[float], seconds: float
) -> None:
    assert run_virtual(call(*calls)) == (found, answered, seconds)


def test_an_error_is_raised_and_nothing_goes_on() -> None:
    answered: list[float] = []

    async def broken() -> bool:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="a bug"):
            await any_answers([broken(), answer(1.0, True, answered)])
        await asyncio.sleep(5.0)

    run_virtual(scenario())
    assert not answered
