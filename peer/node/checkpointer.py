"""Saving a peer's run regularly and at its end, without ever stopping the learner for it (design §8)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
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

CHECKPOINT_SECONDS = 30.0  # between two saves, where neither disk nor learner ask for more
HELD_SHARE = 0.01  # of its time that saving keeps a learner from its steps
HELD_SECONDS = 0.05  # that nobody minds
ASIDE_SHARE = 0.25  # of all that may be written that is for what others fetch; small models leave them more
LEARNER_SECONDS = 6.0  # beyond a step, that the learner may be silent over its part of what is saved last
LEARNER_SECONDS_MAX = 12.0


_T = TypeVar("_T")
_All = tuple[tuple[SavedFragment, ...], Path | None]
"""The peer's states as they were staged, and the file that the learner has written."""


def rest_seconds(written_bytes: float, held_seconds: float, limits: Limits) -> float:
    """How long to wait after a save that has written so much and kept the learner from its steps for so long."""
    hourly_bytes = (1 - ASIDE_SHARE) * limits.written_gigabytes_per_hour * GIGABYTE_BYTES
    of_disk = HOUR_SECONDS * written_bytes / hourly_bytes if hourly_bytes else 0.0
    of_learner = held_seconds / HELD_SHARE if held_seconds > HELD_SECONDS else 0.0
    return max(CHECKPOINT_SECONDS, of_disk, of_learner)


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
        self._held_seconds = 0.0  # for which the learner was kept from its steps for it
        self._credit = CreditBook(directory.path, manifest.run_id, len(manifest.genesis))
        self._turn = asyncio.Lock()
        self._capturing: asyncio.Task[_All] | None = None
        self.learner: LearnerClient | None = None
        self._learner_seconds: float | None = None  # in which it has to answer, or to have written more

    @property
    def folder(self) -> Path:
        """Where everything of this run is kept."""
        return self._directory.path

    async def run(self) -> None:
        """Save as often as may be until cancelled."""
        aside, pause_seconds, written_bytes = self._driver.anchors.aside, CHECKPOINT_SECONDS, 0.0
        while True:
            if aside is not None:
                aside.allow(spare_bytes(pause_seconds, written_bytes, self._limits()))
            await asyncio.sleep(pause_seconds)
            self._held_seconds = 0.0
            await self.save()  # one that fails may have written as much as the one before
            written_bytes = float(self._written_bytes)
            if aside is not None:  # a save is put off for those who fetch, but not for ever
                written_bytes += min(aside.overdrawn_bytes, written_bytes)
            pause_seconds = rest_seconds(written_bytes, self._held_seconds, self._limits())

    async def save(self) -> None:
        """`save_now`, but a failure is only told."""
        with suppress(MusterError):
            await self.save_now()

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

    async def save_now(self) -> Path:
        """States, certificates, credit and learner of one moment, into the folder that is returned.

        Raises LocalError if they cannot be written; then the owner is told until they can.
        """
        try:
            folder = await self._save()
        except LearnerGoneError:
            raise  # the disk has refused nothing
        except MusterError as error:
            self._driver.counters.refuse("checkpoint", str(error))
            raise
        self._driver.counters.take("checkpoint")
        return folder

    async def _save(self) -> Path:
        async with self._turn:
            try:
                await self._finish_capturing()
                staged, learner_file = await self._patiently(self._capture_all())
            except (TimeoutError, MusterError):
                if self._learner_seconds is None:
                    raise
                staged, learner_file = await self._capture_rest(), None
            await _to_its_end(asyncio.to_thread(self._commit, staged, learner_file, self._follow_credit()))
            return self._directory.path

    async def _finish_capturing(self) -> None:
        """What a save that was cancelled has asked of the learner goes on there, in the folder that we are to clear."""
        if self._capturing is not None and not self._capturing.done():
            with suppress(MusterError):
                await self._patiently(self._capturing)

    async def _patiently(self, capture: Coroutine[Any, Any, _All] | asyncio.Task[_All]) -> _All:
        """Wait for the learner's part; raises TimeoutError once nothing more of it has been written for too long."""
        self._capturing, seen = asyncio.ensure_future(capture), self._directory.written()
        while not (await asyncio.wait([self._capturing], timeout=self._learner_seconds))[0]:
            before, seen = seen, self._directory.written()
            if seen == before:
                self._capturing.cancel()
                await asyncio.wait([self._capturing])  # its thread may still be writing
                raise TimeoutError
        return self._capturing.result()

    def _commit(self, staged: Sequence[SavedFragment], learner_file: Path | None, chains: Sequence[Chain]) -> None:
        self._written_bytes = self._directory.commit(staged, learner_file)
        self._credit.save(chains)
        give_back_freed()

    async def _capture_all(self) -> _All:
        if self.learner is not None:
            await asyncio.to_thread(self._directory.make_room)
        # at once, since rounds make new states meanwhile and these are held until they are on disk
        staging = asyncio.ensure_future(asyncio.to_thread(self._directory.stage, await self.capture()))
        if self.learner is None:  # a host, or one whose learner is not ready yet
            return await _to_its_end(staging), None
        learner_file = self._directory.learner_file
        try:
            # nothing was awaited since `capture`: the learner gets this before any later adoption
            done = await self.learner.save(learner_file)
        finally:
            staged = await _to_its_end(staging)
        self._held_seconds = done.seconds
        await self._driver.tape.checkpoint(done.at_step, learner_file)
        return staged, learner_file

    async def _capture_rest(self) -> tuple[SavedFragment, ...]:
        """End the learner, for whose answers adoptions wait."""
        learner, self.learner, self._driver.learner = self.learner, None, None
        if learner is not None:
            await learner.kill()
        return await _to_its_end(asyncio.to_thread(self._directory.stage, await self.capture()))

    async def credit(self) -> CreditReport:
        """Who has contributed how much, up to now."""
        async with self._turn:
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
