"""Tells another peer how it looks from here: its address, our clock, and whether a call to its port gets through.

A call goes only to the address of the asker's own connection, and to loopback where that address is ours. So nobody can
make us call a third party. Calls are rare, and bare TCP connections: nothing is sent over them.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect
from collections.abc import Awaitable, Callable, Collection, Iterable

from coordinator.chain.weights import most_hostile
from dht.allowance import CallerLimits
from dht.daemon.own_hosts import hosts_behind
from dht.identity import PeerId
from dht.meeting import answers, any_answers
from peer.machine.clock import Clock, unix_seconds
from peer.net.frames import ProbeAnswer, ProbeAsk

CALL_INTERVAL_SECONDS = 10.0  # between two calls to the same peer
CALLS_MAX = 4  # at once
ANSWERS_PER_SECOND_MAX = 64
ANSWERS_AT_ONCE_MAX = 4  # to one peer, then one a second
ASKERS_KEPT = 256

HostOf = Callable[[PeerId], Awaitable[str]]
Post = Callable[[PeerId, ProbeAnswer, bytes], None]


def is_reachable(tried: Collection[bool], asked: int) -> bool:
    """Whether this peer can be called, from the results of the peers that tried, out of `asked` peers.

    To conclude that it cannot, most results must be failures, and more of them than peers may be hostile: hostile peers
    can keep others from being answered.
    """
    failed = len(tried) - sum(tried)
    return not (2 * failed > len(tried) and failed > most_hostile(asked + 1))


def rotating_subset(peers: Iterable[PeerId], me: PeerId, turn: int, count: int) -> set[PeerId]:
    """Return `count` of these peers, different ones at each turn and for different askers."""
    order = sorted(peers)
    first = (bisect(order, me) + turn * count) % max(len(order), 1)
    return set((order[first:] + order[:first])[:count])


class ProbeResponder:
    """Answers ProbeAsk within bounds; requests beyond them get no answer."""

    def __init__(self, host_of: HostOf, post: Post, clock: Clock = unix_seconds) -> None:
        self._host_of = host_of
        self._post = post
        self._clock = clock
        self._limits = CallerLimits(1.0, ANSWERS_AT_ONCE_MAX, ANSWERS_PER_SECOND_MAX, ASKERS_KEPT)
        self._calls = CallerLimits(1 / CALL_INTERVAL_SECONDS, 1, math.inf, ASKERS_KEPT)
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, asker: PeerId, ask: ProbeAsk, now: float) -> None:
        """Handle a request."""
        if not self._limits.take(asker, now):
            return
        if ask.port is None:
            self._answer(asker, ask, "", None)
        elif len(self._tasks) < CALLS_MAX and self._calls.take(asker, now):
            task = asyncio.get_running_loop().create_task(self._call(asker, ask, ask.port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, asker: PeerId, ask: ProbeAsk, port: int) -> None:
        host = await self._host_of(asker)
        calls = (answers(one, port) for one in sorted(hosts_behind(host)))
        self._answer(asker, ask, host, await any_answers(calls) if host else None)

    def _answer(self, asker: PeerId, ask: ProbeAsk, host: str, reachable: bool | None) -> None:
        now = max(0, int(1000 * self._clock()))
        answer = ProbeAnswer(ticket=ask.ticket, unix_milliseconds=now, seen_host=host, reachable=reachable)
        self._post(asker, answer, b"")

    async def close(self) -> None:
        """Cancel all calls."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
