"""Fetches the states that the core asks for from other peers (design §8).

The core wants only the newest state of each fragment, and names it at every version. On a slow line a state takes
longer than the time between two versions, so the newest would never arrive. Therefore a download that has begun goes on
as long as a peer serves it, and the versions after it are followed step by step.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
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

OUTRUN_MIN = 2  # this many whole states in a row, out of date on arrival, are not chance

Run = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


@dataclass(slots=True)
class FragmentCatchUp:
    """The progress of one fragment from the state that the core wants to a proven state that it adopts."""

    wanted: FetchState | None = None  # the newest state, until the task takes it up
    reached: HeldState | None = None  # the state that the task has reached, until the core adopts it
    whole: bytes | None = None  # certificate of the state that is being downloaded whole
    running: bool = False  # whether a task runs
    outrun: int = 0  # whole states in a row that were out of date on arrival

    def take(self, certificate: Certificate) -> OuterState | None:
        """Return and forget the reached state if it is this certificate's."""
        reached = self.reached
        if reached is None or reached.digest != certificate.digest:
            return None
        self.reached, self.outrun = None, 0
        return reached.state

    def take_wanted(self) -> FetchState | None:
        """Return and clear the state that the core wants now, for the task to work on."""
        wanted, self.wanted = self.wanted, None
        return wanted


class CatchUp:
    """Runs one task per fragment: `run` starts it, `feed` tells the core how it ended, `chains` are the core's."""

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
        self._fragments: defaultdict[int, FragmentCatchUp] = defaultdict(FragmentCatchUp)
        self._held = False

    def start(self, action: FetchState) -> None:
        """Fetch this state; later, while held.

        A download of the same fragment that leads to it goes on first; one that does not is given up.
        """
        fragment = action.certificate.fragment
        ours = self._fragments[fragment]
        ours.wanted = action
        if ours.whole == action.certificate.digest or self._leads_on(fragment, ours.whole):
            self._states.offer(fragment, action.holders)
        elif ours.whole is not None:
            self._states.give_up(fragment)
        self._begin(fragment)

    def hold(self, held: bool) -> None:
        """Begin nothing while held; when released, fetch what was asked for meanwhile."""
        self._held = held
        for fragment in list(self._fragments):
            self._begin(fragment)

    def take(self, certificate: Certificate) -> OuterState | None:
        """Return and forget the state fetched for this certificate."""
        state = self._fragments[certificate.fragment].take(certificate)
        if state is not None:
            self._states.forget(certificate.fragment)
        return state

    @property
    def outrun(self) -> bool:
        """Whether versions follow each other faster than their states arrive here."""
        return any(one.outrun >= OUTRUN_MIN for one in self._fragments.values())

    @property
    def following(self) -> list[int]:
        """The fragments for which steps are fetched instead of a whole state, in order."""
        return sorted(fragment for fragment, one in self._fragments.items() if one.running and one.whole is None)

    def _begin(self, fragment: int) -> None:
        ours = self._fragments[fragment]
        if ours.wanted is not None and not self._held and not ours.running:
            ours.running = True
            self._run(self._fetch(ours))

    async def _fetch(self, ours: FragmentCatchUp) -> None:
        """Fetch until the newest wanted state is here or no peer serves it."""
        try:
            while not self._held and (wanted := ours.take_wanted()) is not None:
                event = await self._catch_up(ours, wanted)
                if ours.wanted is None:
                    self._feed(event)
        finally:
            ours.running = False

    async def _catch_up(self, ours: FragmentCatchUp, wanted: FetchState) -> Event:
        """Reach the wanted state by steps from the newest state that we have, or else download it whole."""
        certificate, fragment = wanted.certificate, wanted.certificate.fragment
        if ours.reached is not None and ours.reached.digest == certificate.digest:
            return StateFetched(fragment, certificate.digest)
        for held in (ours.reached, self._states.anchors.held(fragment)):
            missed = [] if held is None else self._missed(fragment, held.digest)
            if held is None or not missed:
                continue
            reached = await follow_steps(held, missed, wanted.holders, self._work, self._states.steps)
            if reached is not held:
                ours.reached = reached
            if reached.digest == missed[-1].digest or ours.wanted is not None:
                return StateFetched(fragment, reached.digest)
        if ours.reached is not None:
            ours.reached = None
            ours.outrun += 1
        return await self._fetch_whole(ours, wanted)

    async def _fetch_whole(self, ours: FragmentCatchUp, wanted: FetchState) -> Event:
        certificate, fragment = wanted.certificate, wanted.certificate.fragment
        ours.whole = certificate.digest
        try:
            state = await self._states.fetch(certificate, wanted.holders)
        except NetworkError as error:
            log.info("fetch_failed", fragment=fragment, reason=str(error))
            ours.outrun += ours.wanted is not None and self._states.has_begun(fragment)
            return FetchFailed(fragment, certificate.digest)
        finally:
            ours.whole = None
        ours.reached = HeldState(certificate.digest, state)
        return StateFetched(fragment, certificate.digest)

    def _leads_on(self, fragment: int, whole: bytes | None) -> bool:
        """Whether the newest version can be followed from the state that is under way as a whole."""
        return self._states.has_begun(fragment) and bool(self._missed(fragment, whole))

    def _missed(self, fragment: int, digest: bytes | None) -> list[Certificate]:
        """Return the versions to follow from this one, or none if their steps are larger than the newest state."""
        if digest is None:
            return []
        most_bytes = self._states.anchors.state_bytes(fragment)
        return missed_versions(self._chains()[fragment], digest, self._work, most_bytes)
