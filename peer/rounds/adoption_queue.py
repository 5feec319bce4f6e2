"""What the learner has yet to take over, fragment by fragment: it may not answer for long, and versions go on."""

from __future__ import annotations

import asyncio

from peer.rounds.stale_work import StaleWork


class AdoptionQueue:
    """Tasks that each bring one version to the learner, in order. Each holds a whole anchor in memory until then.

    More than `waiting_max` of a fragment never wait: without the oldest of those that the learner was not asked yet,
    the next one takes the fragment over as it is certified, as after `max_stale` versions that came without us.
    """

    def __init__(self, fragments: int, waiting_max: int, local_work: StaleWork) -> None:
        self.turns = [asyncio.Lock() for _ in range(fragments)]  # to ask the learner about this fragment
        self._waiting: list[list[asyncio.Task[None]]] = [[] for _ in range(fragments)]
        self._waiting_max = waiting_max
        self._local_work = local_work

    def add(self, fragment: int, bringing: asyncio.Task[None]) -> None:
        """One more version of a fragment; the first in the queue may have asked the learner already."""
        waiting = self._waiting[fragment]
        waiting.append(bringing)
        bringing.add_done_callback(waiting.remove)
        if len(waiting) > self._waiting_max:
            waiting[1].cancel()
            self._local_work.doubt({fragment})

    @property
    def waiting(self) -> int:
        """How many have not been brought yet, of all fragments."""
        return sum(map(len, self._waiting))

    async def settle(self) -> None:
        """Wait until the learner has taken over everything."""
        while tasks := [task for waiting in self._waiting for task in waiting]:
            await asyncio.wait(tasks)
