"""The states that the core asks for, got from other peers: the newest of each fragment only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from coordinator.actions import FetchState
from coordinator.events import Event, FetchFailed, StateFetched
from dht.errors import NetworkError
from peer.missed_step import missed_step
from peer.outer_optimizer import OuterState
from peer.round_work import RoundWork
from peer.state_transfer import StateTransfer

log = structlog.get_logger(__name__)

Run = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Fetches:
    """One task per fragment; `run` starts it, `feed` tells the core how it ended."""

    def __init__(self, states: StateTransfer, work: RoundWork, run: Run, feed: Callable[[Event], None]) -> None:
        self._states = states
        self._work = work
        self._run = run
        self._feed = feed
        self._fetched: dict[bytes, OuterState] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._postponed: dict[int, FetchState] | None = None  # while held

    def start(self, action: FetchState) -> None:
        """Fetch this state instead of an older one of the same fragment; later, while held."""
        fragment = action.certificate.fragment
        if self._postponed is not None:
            self._postponed[fragment] = action
            return
        older = self._running.pop(fragment, None)
        if older is not None:
            older.cancel()
        self._running[fragment] = self._run(self._fetch(action))

    def hold(self, held: bool) -> None:
        """While held, begin nothing; then fetch what was asked for meanwhile."""
        if held == (self._postponed is not None):
            return
        postponed, self._postponed = self._postponed or {}, {} if held else None
        for action in postponed.values():
            self.start(action)

    def take(self, digest: bytes) -> OuterState | None:
        """The state fetched for the certificate of this digest, once."""
        return self._fetched.pop(digest, None)

    async def _fetch(self, action: FetchState) -> None:
        certificate = action.certificate
        try:
            missed = await missed_step(certificate, action.holders, self._work, self._states)
            state = missed or await self._states.fetch(certificate, action.holders)
        except NetworkError as error:
            log.info("fetch_failed", fragment=certificate.fragment, reason=str(error))
            self._feed(FetchFailed(certificate.fragment, certificate.digest))
            return
        self._fetched[certificate.digest] = state
        self._feed(StateFetched(certificate.fragment, certificate.digest))
        self._fetched.pop(certificate.digest, None)
