"""Versions queued for a learner that does not answer: only a few are kept, and a later adoption takes over all."""

from __future__ import annotations

import asyncio

from peer.rounds.adoption_queue import AdoptionQueue
from peer.rounds.stale_work import StaleWork

WAITING_MAX = 3


def test_few_versions_wait_for_a_learner_that_does_not_answer() -> None:
    async def main() -> None:
        work, brought = StaleWork(2, 64), list[int]()
        queue = AdoptionQueue(2, WAITING_MAX, work)
        answers = asyncio.Event()

        async def bring(version: int) -> None:
            async with queue.turns[0]:
                await answers.wait()
                brought.append(version)

        for version in range(20):
            queue.add(0, asyncio.create_task(bring(version)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert queue.waiting <= WAITING_MAX
        answers.set()
        await queue.settle()
        assert brought == [0, 18, 19], "the one that the learner was asked, and the newest"
        assert work.is_dropped(0)
        assert not work.is_dropped(1)

    asyncio.run(main())
