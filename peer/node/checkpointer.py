"""Saves a peer's run regularly and at its end, without stopping the learner for it (design §8).

Each save renews one part of the saved state, in turn, so only that part is on disk twice for a while (docs/adr/0070).
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

CHECKPOINT_SECONDS = 30.0  # between two saves of the same part, where neither disk nor learner requires more
MOMENTUM_TURNS = 2  # turns over fragments whose states have a momentum: half of them take no more than a learner's part
HELD_SHARE = 0.01  # of a learner's time, that saving may keep it from its steps
HELD_SECONDS = 0.05  # shorter interruptions do not count
SPILL_SHARE = 0.25  # of the owner's write limit, for downloads that others fetch; small models leave more of it
LEARNER_SECONDS = 6.0  # beyond a step, for which the learner may be silent during the last save
LEARNER_SECONDS_MAX = 12.0


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Turn:
    """The parts that one save renews: the states of these fragments, and the learner's part."""

    fragments: range
    learner: bool = False


@dataclass(frozen=True, slots=True)
class _Written:
    """The peer's staged states, the file that the learner has written, and the heads of that file's versions."""

    staged: tuple[SavedFragment, ...]
    learner_file: Path | None = None
    learner_heads: tuple[bytes, ...] | None = None


def rest_seconds(written_bytes: float, limits: Limits, turns: int = 1) -> float:
    """Return the time to wait after a save of this many bytes, with this many turns."""
    hourly_bytes = (1 - SPILL_SHARE) * limits.written_gigabytes_per_hour * GIGABYTE_BYTES
    return max(CHECKPOINT_SECONDS / turns, HOUR_SECONDS * written_bytes / hourly_bytes if hourly_bytes else 0.0)


def learner_rest_seconds(held_seconds: float) -> float:
    """Return how long a learner must train before it writes again, after a save that held it this long."""
    return held_seconds / HELD_SHARE if held_seconds > HELD_SECONDS else 0.0


def spare_bytes(seconds: float, written_bytes: float, limits: Limits) -> float:
    """Return the bytes that may be written in these seconds besides a save of this size."""
    hourly_bytes = limits.written_gigabytes_per_hour * GIGABYTE_BYTES
    return hourly_bytes * seconds / HOUR_SECONDS - written_bytes if hourly_bytes else math.inf


async def _to_its_end(writing: Awaitable[_T]) -> _T:
    """Wait for a thread, which cannot be stopped, even when cancelled: the next write must not run beside it."""
    task = asyncio.ensure_future(writing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class Checkpointer:
    """Writes one checkpoint at a time. A failing disk is reported to the owner, and training goes on."""

    def __init__(
        self,
        directory: RunDirectory,
        driver: RoundDriver,
        presence: Callable[[], Presence],
        limits: Callable[[], Limits] = Limits,
    ) -> None:
        """`presence` returns this peer's presence, `limits` what its owner allows now."""
        manifest = driver.engine.core.manifest
        self._directory = directory
        self._driver = driver
        self._own_presence = presence
        self._limits = limits
        self._written_bytes = 0  # by the last save
        self._held_seconds = 0.0  # for which the last save of the learner kept it from its steps
        self._credit = CreditBook(directory.path, manifest.run_id, len(manifest.genesis))
        self._momentum = manifest.config.outer.momentum > 0
        self._saving = asyncio.Lock()
        self._capturing: asyncio.Task[_Written] | None = None
        self.learner: LearnerClient | None = None
        self._learner_seconds: float | None = None  # in which it must answer or have written more

    @property
    def folder(self) -> Path:
        """The folder of everything that is kept of this run."""
        return self._directory.path

    async def run(self) -> None:
        """Save as often as allowed, until cancelled."""
        loop, spill_files = asyncio.get_running_loop(), self._driver.anchors.spill_files
        written_bytes = learner_from = 0.0
        for number in count():
            is_due = learner_from <= loop.time() + CHECKPOINT_SECONDS
            turns = [turn for turn in self._turns() if is_due or not turn.learner]
            turn = turns[number % len(turns)]
            pause_seconds = rest_seconds(written_bytes, self._limits(), len(turns))
            if turn.learner:
                pause_seconds = max(pause_seconds, learner_from - loop.time())
            if spill_files is not None:
                spill_files.allow(spare_bytes(pause_seconds, written_bytes, self._limits()))
            await asyncio.sleep(pause_seconds)
            await self.save(turn)  # a failed save may have written as much as the one before
            written_bytes = float(self._written_bytes)
            if turn.learner:
                learner_from = loop.time() + learner_rest_seconds(self._held_seconds)
            if spill_files is not None:  # a save is delayed for peers that fetch, but not for ever
                written_bytes += min(spill_files.overdrawn_bytes, written_bytes)

    def _turns(self) -> list[Turn]:
        """Return the parts that saves renew, one after the other; the first save in a folder writes all states, too.

        States come last, so that older ones are still on disk after the last save, in case a drive loses the newest.
        """
        fragments = len(self._driver.engine.machines)
        if self.learner is None and not self._directory.has_learner:  # a host: these are fewer bytes than trainers save
            return [Turn(range(fragments))]
        parts = min(fragments, MOMENTUM_TURNS if self._momentum else 1)
        turns = [Turn(range(first, fragments, parts)) for first in range(parts)]
        return turns if self.learner is None else [Turn(range(0), learner=True), *turns]

    async def save(self, *turns: Turn) -> None:
        """Save like `save_now`, but only report a failure."""
        with suppress(MusterError):
            await self.save_now(*turns)

    async def save_last(self) -> None:
        """Save like `save_now`. If the learner neither answers nor writes, end it, save the rest, raise LocalError.

        What the learner saved before is kept: in a long run, its optimizer state is worth more than its last steps.
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
        """Save states, certificates, credit and learner, or what these turns renew; return the folder.

        Raises LocalError if they cannot be written; the owner is told until they can.
        """
        try:
            async with self._saving:
                for turn in turns or self._turns():
                    if turn.fragments or self.learner is not None:  # the learner may have been ended meanwhile
                        await self._save(turn)
        except LearnerGoneError:
            raise  # the disk is not to blame
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
        """Wait for what a cancelled save asked of the learner: it still writes to the folder that we will clear."""
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
        # not awaited, since rounds make new states meanwhile and the captured ones stay in memory until they are on
        # disk
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
        """Begin to write what was captured, without keeping it; return the task and the heads of its versions."""
        staging = asyncio.create_task(asyncio.to_thread(self._directory.stage, captured, turn.fragments))
        return staging, captured.heads

    async def _capture_rest(self, turn: Turn) -> _Written:
        """End the learner, because adoptions wait for its answers, and capture the states without it."""
        learner, self.learner, self._driver.learner = self.learner, None, None
        if learner is not None:
            await learner.kill()
        staging, _ = self._stage(await self.capture(), turn)
        return _Written(await _to_its_end(staging))

    async def credit(self) -> CreditReport:
        """Report the contributions of each peer up to now."""
        async with self._saving:
            return await asyncio.to_thread(self._credit.report, self._follow_credit())

    def _follow_credit(self) -> list[Chain]:
        """Return copies of the chains for another thread, after telling the credit book all names."""
        engine = self._driver.engine
        others = ((peer, sighting.presence) for peer, sighting in engine.core.presence.sightings.items())
        self._credit.hear([(engine.core.me, self._own_presence()), *others])
        return [machine.chain.truncated(machine.chain.version) for machine in engine.machines]

    async def passed(self, captured: Captured) -> tuple[list[Certificate], ...]:
        """Return, by fragment, the certificates that stand for those before these."""
        return await asyncio.to_thread(self._directory.passed, captured.chains)

    async def capture(self) -> Captured:
        """Return states and certificates of the moment at which this returns."""
        await self._driver.adoptions.settle()
        machines = self._driver.engine.machines
        held = tuple(machine.held for machine in machines)
        chains = tuple(machine.held_chain.certificates.copy() for machine in machines)
        states = tuple(self._driver.anchors.current(fragment) for fragment in range(len(machines)))
        return Captured(held, states, chains)
