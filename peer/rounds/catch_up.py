"""The states that the core asks for, got from other peers (design §8).

The core wants the newest of each fragment only, and names it at every version. On a line on which a state takes longer
than a version, that one would never come: so what is under way comes to its end as long as somebody serves it, and the
versions after it are followed step by step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.core.actions import FetchState
from coordinator.core.events import Event, FetchFailed, StateFetched
from dht.errors import NetworkError
from peer.numerics.outer_optimizer import OuterState
from peer.rounds.replay_steps import follow_steps, missed_versions
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import HeldState
from peer.sync.state_client import StateClient

log = structlog.get_logger(__name__)

OUTRUN_MIN = 2  # whole states in a row that were too old when they were here: not by chance

Run = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class CatchUp:
    """One task per fragment; `run` starts it, `feed` tells the core how it ended, `chains` are the core's."""

    def __init__(
        self,
        states: StateClient,
        work: TensorWorker,
        chains: Callable[[], Sequence[Chain]],
        run: Run,
        feed: Callable[[Event], None],
    ) -> None:
        self._states = states
        self._work = work
        self._chains = chains
        self._run = run
        self._feed = feed
        self._wanted: dict[int, FetchState] = {}  # the newest of each fragment, until its task looks at it
        self._reached: dict[int, HeldState] = {}  # what a task has come to, until the core adopts it
        self._running: set[int] = set()
        self._whole: dict[int, bytes] = {}  # the certificates of states that are under way as a whole
        self._outrun: Counter[int] = Counter()
        self._held = False

    def start(self, action: FetchState) -> None:
        """Fetch this state, after what is under way of the same fragment if it leads there; later, while held."""
        fragment, whole = action.certificate.fragment, self._whole.get(action.certificate.fragment)
        self._wanted[fragment] = action
        if whole == action.certificate.digest or (self._states.has_begun(fragment) and self._missed(fragment, whole)):
            self._states.offer(fragment, action.holders)
        elif whole is not None:
            self._states.give_up(fragment)
        self._begin(fragment)

    def hold(self, held: bool) -> None:
        """While held, begin nothing; then fetch what was asked for meanwhile."""
        self._held = held
        for fragment in list(self._wanted):
            self._begin(fragment)

    def take(self, certificate: Certificate) -> OuterState | None:
        """The state fetched for this certificate, once."""
        reached = self._reached.get(certificate.fragment)
        if reached is None or reached.digest != certificate.digest:
            return None
        del self._reached[certificate.fragment], self._outrun[certificate.fragment]
        self._states.forget(certificate.fragment)
        return reached.state

    @property
    def outrun(self) -> bool:
        """Whether versions follow each other faster than their states arrive here."""
        return any(count >= OUTRUN_MIN for count in self._outrun.values())

    @property
    def following(self) -> list[int]:
        """The fragments of which steps are fetched, and not a state."""
        return sorted(self._running - self._whole.keys())

    def _begin(self, fragment: int) -> None:
        if not self._held and fragment not in self._running:
            self._running.add(fragment)
            self._run(self._fetch(fragment))

    async def _fetch(self, fragment: int) -> None:
        """Until the newest state is here, or nobody gives it."""
        try:
            while fragment in self._wanted and not self._held:
                event = await self._catch_up(self._wanted.pop(fragment))
                if fragment not in self._wanted:
                    self._feed(event)
        finally:
            self._running.discard(fragment)

    async def _catch_up(self, wanted: FetchState) -> Event:
        """By steps from the newest state that we have, or else by the wanted state as a whole."""
        certificate, holders = wanted.certificate, wanted.holders
        fragment, reached = certificate.fragment, self._reached.get(certificate.fragment)
        if reached is not None and reached.digest == certificate.digest:
            return StateFetched(fragment, reached.digest)
        for held in (reached, self._states.anchors.held(fragment)):
            missed = [] if held is None else self._missed(fragment, held.digest)
            if held is None or not missed:
                continue
            reached = await follow_steps(held, missed, holders, self._work, self._states)
            if reached is not held:
                self._reached[fragment] = reached
            if reached.digest == missed[-1].digest or fragment in self._wanted:
                return StateFetched(fragment, reached.digest)
        if self._reached.pop(fragment, None) is not None:
            self._outrun[fragment] += 1
        self._whole[fragment] = certificate.digest
        try:
            state = await self._states.fetch(certificate, holders)
        except NetworkError as error:
            log.info("fetch_failed", fragment=fragment, reason=str(error))
            self._outrun[fragment] += fragment in self._wanted and self._states.has_begun(fragment)
            return FetchFailed(fragment, certificate.digest)
        finally:
            del self._whole[fragment]
        self._reached[fragment] = HeldState(certificate.digest, state)
        return StateFetched(fragment, certificate.digest)

    def _missed(self, fragment: int, digest: bytes | None) -> list[Certificate]:
        """The versions to follow from this one, if that is less than the newest state."""
        if digest is None:
            return []
        most_bytes = self._states.anchors.state_bytes(fragment)
        return missed_versions(self._chains()[fragment], digest, self._work, most_bytes)
