"""The queue of versions that the learner has yet to take over, by fragment.

The learner may be slow to answer while new versions go on being certified.
"""

from __future__ import annotations

import asyncio

from peer.rounds.stale_work import StaleWork


class AdoptionQueue:
    """Tasks that each bring one version to the learner, in order. Each holds a whole anchor in memory until it ends.

    At most `waiting_max` tasks of one fragment wait. Beyond that, the oldest task for which the learner was not asked
    yet is cancelled. The next version then replaces the fragment as certified, as after `max_stale` versions without
    our work.
    """

    def __init__(self, fragments: int, waiting_max: int, local_work: StaleWork) -> None:
        self.turns = [asyncio.Lock() for _ in range(fragments)]  # held while asking the learner about this fragment
        self._waiting: list[list[asyncio.Task[None]]] = [[] for _ in range(fragments)]
        self._waiting_max = waiting_max
        self._local_work = local_work

    def add(self, fragment: int, bringing: asyncio.Task[None]) -> None:
        """Add a task that brings one more version; the first in the queue may have asked the learner already."""
        waiting = self._waiting[fragment]
        waiting.append(bringing)
        bringing.add_done_callback(waiting.remove)
        if len(waiting) > self._waiting_max:
            waiting[1].cancel()
            self._local_work.doubt({fragment})

    @property
    def waiting(self) -> int:
        """Number of versions not yet brought to the learner, over all fragments."""
        return sum(map(len, self._waiting))

    async def settle(self) -> None:
        """Wait until the learner has taken over every version."""
        while tasks := [task for waiting in self._waiting for task in waiting]:
            await asyncio.wait(tasks)
