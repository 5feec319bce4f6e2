"""Saving a peer's run regularly and at its end, without ever stopping the learner for it (design §8).

Each save renews a part of what lies on disk, in turn, so that one part alone lies there twice (docs/adr/0070).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.views.credit import CreditReport
from coordinator.wire.presence import Presence
from dht.errors import LocalError, MusterError
from dht.units import GIGABYTE_BYTES, HOUR_SECONDS
from peer.learner.client import LearnerClient
from peer.learner.spawn import LearnerGoneError
from peer.machine.heap import give_back_freed
from peer.machine.limits import Limits
from peer.rounds.driver import RoundDriver
from peer.storage.credit_book import CreditBook
from peer.storage.generations import SavedFragment
from peer.storage.run_directory import Captured, RunDirectory

CHECKPOINT_SECONDS = 30.0  # between two saves of the same, where neither disk nor learner ask for more
MOMENTUM_TURNS = 2  # of fragments whose states have a momentum: half of them take no more than a learner's part
HELD_SHARE = 0.01  # of its time that saving keeps a learner from its steps
HELD_SECONDS = 0.05  # that nobody minds
ASIDE_SHARE = 0.25  # of all that may be written that is for what others fetch; small models leave them more
LEARNER_SECONDS = 6.0  # beyond a step, that the learner may be silent over its part of what is saved last
LEARNER_SECONDS_MAX = 12.0


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one save renews: the states of these fragments, and the learner's part."""

    fragments: range
    learner: bool = False


@dataclass(frozen=True, slots=True)
class _Written:
    """The peer's states as they were staged, the file that the learner has written, and of which versions it is."""

    staged: tuple[SavedFragment, ...]
    learner_file: Path | None = None
    learner_heads: tuple[bytes, ...] | None = None


def rest_seconds(written_bytes: float, limits: Limits, turns: int = 1) -> float:
    """How long to wait after a save that has written so much, if there are so many turns."""
    hourly_bytes = (1 - ASIDE_SHARE) * limits.written_gigabytes_per_hour * GIGABYTE_BYTES
    return max(CHECKPOINT_SECONDS / turns, HOUR_SECONDS * written_bytes / hourly_bytes if hourly_bytes else 0.0)


def learner_rest_seconds(held_seconds: float) -> float:
    """How long a learner makes steps before it writes again, after it made none for so long."""
    return held_seconds / HELD_SHARE if held_seconds > HELD_SECONDS else 0.0


def spare_bytes(seconds: float, written_bytes: float, limits: Limits) -> float:
    """What else may be written in so many seconds after a save that has written so much."""
    hourly_bytes = limits.written_gigabytes_per_hour * GIGABYTE_BYTES
    return hourly_bytes * seconds / HOUR_SECONDS - written_bytes if hourly_bytes else math.inf


async def _to_its_end(writing: Awaitable[_T]) -> _T:
    """Wait for a thread, which nobody can end, also when cancelled: what is written next must not meet it."""
    task = asyncio.ensure_future(writing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class Checkpointer:
    """Writes one checkpoint at a time; a disk that refuses is told to the owner, and training goes on."""

    def __init__(
        self,
        directory: RunDirectory,
        driver: RoundDriver,
        presence: Callable[[], Presence],
        limits: Callable[[], Limits] = Limits,
    ) -> None:
        """`presence` is what this peer says of itself, `limits` what its owner allows now."""
        manifest = driver.engine.core.manifest
        self._directory = directory
        self._driver = driver
        self._own_presence = presence
        self._limits = limits
        self._written_bytes = 0  # by the last save
        self._held_seconds = 0.0  # for which the learner was kept from its steps by the last of its own
        self._credit = CreditBook(directory.path, manifest.run_id, len(manifest.genesis))
        self._momentum = manifest.config.outer.momentum > 0
        self._saving = asyncio.Lock()
        self._capturing: asyncio.Task[_Written] | None = None
        self.learner: LearnerClient | None = None
        self._learner_seconds: float | None = None  # in which it has to answer, or to have written more

    @property
    def folder(self) -> Path:
        """Where everything of this run is kept."""
        return self._directory.path

    async def run(self) -> None:
        """Save as often as may be until cancelled."""
        loop, aside = asyncio.get_running_loop(), self._driver.anchors.aside
        written_bytes = learner_from = 0.0
        for number in count():
            is_due = learner_from <= loop.time() + CHECKPOINT_SECONDS
            turns = [turn for turn in self._turns() if is_due or not turn.learner]
            turn = turns[number % len(turns)]
            pause_seconds = rest_seconds(written_bytes, self._limits(), len(turns))
            if turn.learner:
                pause_seconds = max(pause_seconds, learner_from - loop.time())
            if aside is not None:
                aside.allow(spare_bytes(pause_seconds, written_bytes, self._limits()))
            await asyncio.sleep(pause_seconds)
            await self.save(turn)  # one that fails may have written as much as the one before
            written_bytes = float(self._written_bytes)
            if turn.learner:
                learner_from = loop.time() + learner_rest_seconds(self._held_seconds)
            if aside is not None:  # a save is put off for those who fetch, but not for ever
                written_bytes += min(aside.overdrawn_bytes, written_bytes)

    def _turns(self) -> list[Turn]:
        """What saves renew, one after the other; the first in a folder saves all states, too.

        States come last, so that after the last save older ones lie there still, in case a drive loses the newest.
        """
        fragments = len(self._driver.engine.machines)
        if self.learner is None and not self._directory.has_learner:  # a host: this is less than what peers have
            return [Turn(range(fragments))]
        parts = min(fragments, MOMENTUM_TURNS if self._momentum else 1)
        turns = [Turn(range(first, fragments, parts)) for first in range(parts)]
        return turns if self.learner is None else [Turn(range(0), learner=True), *turns]

    async def save(self, *turns: Turn) -> None:
        """`save_now`, but a failure is only told."""
        with suppress(MusterError):
            await self.save_now(*turns)

    async def save_last(self) -> None:
        """`save_now`. A learner that neither answers nor writes is ended, and LocalError raised, all else saved.

        So is what it had saved before: in a long run, its optimizer's state is worth more than the last steps.
        """
        learner = self.learner
        step_seconds = 0.0 if learner is None else learner.progress.step_seconds or 0.0
        self._learner_seconds = min(LEARNER_SECONDS + step_seconds, LEARNER_SECONDS_MAX)
        await self.save_now()
        if learner is not self.learner:
            raise LocalError(
                f"the learner did not answer within {self._learner_seconds:.0f} s, so it was ended and what it had not "
                "contributed is lost; all else is saved, and another one goes on from what it had saved before"
            )

    async def save_now(self, *turns: Turn) -> Path:
        """States, certificates, credit and learner, into the folder that is returned; or what these turns renew.

        Raises LocalError if they cannot be written; then the owner is told until they can.
        """
        try:
            async with self._saving:
                for turn in turns or self._turns():
                    if turn.fragments or self.learner is not None:  # it may have been ended meanwhile
                        await self._save(turn)
        except LearnerGoneError:
            raise  # the disk has refused nothing
        except MusterError as error:
            self._driver.counters.refuse("checkpoint", str(error))
            raise
        self._driver.counters.take("checkpoint")
        return self._directory.path

    async def _save(self, turn: Turn) -> None:
        try:
            await self._finish_capturing()
            written = await self._patiently(self._capture(turn))
        except (TimeoutError, MusterError):
            if self._learner_seconds is None:
                raise
            written = await self._capture_rest(turn)
        await _to_its_end(asyncio.to_thread(self._commit, written, self._follow_credit()))

    async def _finish_capturing(self) -> None:
        """What a save that was cancelled has asked of the learner goes on there, in the folder that we are to clear."""
        if self._capturing is not None and not self._capturing.done():
            with suppress(MusterError):
                await self._patiently(self._capturing)

    async def _patiently(self, capture: Coroutine[Any, Any, _Written] | asyncio.Task[_Written]) -> _Written:
        """Wait for the learner's part; raises TimeoutError once nothing more of it has been written for too long."""
        self._capturing, seen = asyncio.ensure_future(capture), self._directory.written()
        patience_seconds = None if self.learner is None else self._learner_seconds
        while not (await asyncio.wait([self._capturing], timeout=patience_seconds))[0]:
            before, seen = seen, self._directory.written()
            if seen == before:
                self._capturing.cancel()
                await asyncio.wait([self._capturing])  # its thread may still be writing
                raise TimeoutError
        return self._capturing.result()

    def _commit(self, written: _Written, chains: Sequence[Chain]) -> None:
        self._written_bytes = self._directory.commit(written.staged, written.learner_file, written.learner_heads)
        self._credit.save(chains)
        give_back_freed()

    async def _capture(self, turn: Turn) -> _Written:
        learner = self.learner if turn.learner else None
        if learner is not None:
            await asyncio.to_thread(self._directory.make_room)
        # at once, since rounds make new states meanwhile and these are held until they are on disk
        staging, heads = self._stage(await self.capture(), turn)
        if learner is None:
            return _Written(await _to_its_end(staging))
        learner_file = self._directory.learner_file
        try:
            # nothing was awaited since `capture`: the learner gets this before any later adoption
            done = await learner.save(learner_file)
        finally:
            staged = await _to_its_end(staging)
        self._held_seconds = done.seconds
        await self._driver.tape.checkpoint(done.at_step, learner_file)
        return _Written(staged, learner_file, heads)

    def _stage(
        self, captured: Captured, turn: Turn
    ) -> tuple[asyncio.Task[tuple[SavedFragment, ...]], tuple[bytes, ...]]:
        """Begin to write what was captured, and forget it; gives what names its versions."""
        staging = asyncio.create_task(asyncio.to_thread(self._directory.stage, captured, turn.fragments))
        return staging, captured.heads

    async def _capture_rest(self, turn: Turn) -> _Written:
        """End the learner, for whose answers adoptions wait."""
        learner, self.learner, self._driver.learner = self.learner, None, None
        if learner is not None:
            await learner.kill()
        staging, _ = self._stage(await self.capture(), turn)
        return _Written(await _to_its_end(staging))

    async def credit(self) -> CreditReport:
        """Who has contributed how much, up to now."""
        async with self._saving:
            return await asyncio.to_thread(self._credit.report, self._follow_credit())

    def _follow_credit(self) -> list[Chain]:
        """The chains as they are, for another thread."""
        engine = self._driver.engine
        others = ((peer, sighting.presence) for peer, sighting in engine.core.presence.sightings.items())
        self._credit.hear([(engine.core.me, self._own_presence()), *others])
        return [machine.chain.truncated(machine.chain.version) for machine in engine.machines]

    async def passed(self, captured: Captured) -> tuple[list[Certificate], ...]:
        """By fragment what stands for the certificates before these."""
        return await asyncio.to_thread(self._directory.passed, captured.chains)

    async def capture(self) -> Captured:
        """States and certificates of the moment at which this returns."""
        await self._driver.adoptions.settle()
        machines = self._driver.engine.machines
        held = tuple(machine.held for machine in machines)
        chains = tuple(machine.held_chain.certificates.copy() for machine in machines)
        states = tuple(self._driver.anchors.current(fragment) for fragment in range(len(machines)))
        return Captured(held, states, chains)
