"""None of a node's tasks outlives it, and every failure is reported."""

from __future__ import annotations

import asyncio

import pytest

from dht.errors import LocalError
from peer.machine.tasks import Tasks


async def fail() -> None:
    raise LocalError("broken")


def test_a_failure_is_told_once_to_whoever_has_to_know() -> None:
    told: list[str] = []

    async def main() -> None:
        tasks = Tasks(lambda error: told.append(str(error)))
        with pytest.raises(LocalError, match="broken"):
            await tasks.begin(fail())
        assert told == []
        tasks.spawn(fail())
        await asyncio.sleep(0)
        await tasks.end()

    asyncio.run(main())
    assert told == ["broken"]


def test_a_task_that_still_runs_in_the_end_is_ended_and_has_not_failed() -> None:
    told: list[BaseException] = []

    async def main() -> None:
        tasks = Tasks(told.append)
        begun = tasks.begin(asyncio.sleep(3600))
        tasks.spawn(asyncio.sleep(3600))
        await asyncio.sleep(0)
        await tasks.end()
        assert begun.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert told == []
