"""Supervises a peer's learner: starts it, lets it take part, and replaces it when it hangs or is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from coordinator.core.events import Progress
from dht.errors import LocalError
from dht.statement import DIGEST_BYTES
from peer.learner.client import LearnerClient
from peer.learner.messages import Steps
from peer.learner.spawn import LearnerLostError
from peer.learner.work_counters import LearnerProgress
from peer.machine.tasks import Tasks
from peer.node.checkpointer import Checkpointer
from peer.node.hang_detector import LOOK_SECONDS, HangDetector, note_hang, note_loss, note_step
from peer.node.learner_start import start_learner
from peer.node.lifecycle import Lifecycle, certified_progress
from peer.node.live_limits import LiveLimits
from peer.node.options import NodeOptions
from peer.node.slow_steps import watch_steps
from peer.rounds.driver import RoundDriver
from peer.storage.run_directory import RunDirectory, head_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Starting:
    """A process that is being started; `heads` name the versions of its parameters, empty if unknown."""

    learner: asyncio.Task[LearnerClient]
    heads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class LearnerDependents:
    """The parts of a peer that depend on its learner."""

    directory: RunDirectory
    checkpointer: Checkpointer
    lifecycle: Lifecycle
    limits: LiveLimits

    def take(self, learner: LearnerClient) -> None:
        """Give these parts a learner whose process is ready."""
        self.checkpointer.learner = self.lifecycle.learner = learner
        self.limits.begin_learner(learner)


class LearnerSupervisor:
    """Keeps one peer's learner through successive processes. `learner` is None until the first is ready."""

    def __init__(
        self,
        options: NodeOptions,
        driver: RoundDriver,
        tasks: Tasks,
        progress: LearnerProgress,
        dependents: LearnerDependents,
    ) -> None:
        self.progress = progress
        self.learner: LearnerClient | None = None
        self._options = options
        self._driver = driver
        self._tasks = tasks
        self._dependents = dependents
        self._standstill = HangDetector()

    def prepare(self, state: Path | None, heads: Sequence[bytes] = ()) -> Starting:
        """Start a process, paused, that goes on from this state, whose versions have these heads, or from version 0."""
        config = self._driver.engine.core.manifest.config
        if state is None:  # it does not have values that are given, and not drawn
            heads = () if config.model.weights == "given" else [bytes(DIGEST_BYTES)] * config.pace.fragments
        return Starting(self._tasks.begin(self._start(state)), heads)

    async def begin(self, starting: Starting) -> None:
        """Take part with the process once it is ready; raises what `start_learner` does."""
        await self._take_part(starting)
        self._tasks.spawn(self._watch())

    async def stop(self) -> None:
        """End the process after disconnecting the driver from it; leave a session the newest anchors."""
        self._driver.learner = None
        if self.learner is None:
            return
        if self._options.session is not None:
            with suppress(LocalError):  # without them it keeps its own values
                await asyncio.to_thread(self.learner.lay_out, self._driver.anchors.all_anchors())
        await self.learner.stop()

    async def _start(self, state: Path | None) -> LearnerClient:
        core = self._driver.engine.core
        self.learner = await start_learner(core.manifest, core.me, self._options, state, self.progress, self._on_steps)
        return self.learner

    async def _take_part(self, starting: Starting) -> None:
        driver = self._driver
        learner = await starting.learner
        driver.feed(Progress(self.progress.steps, self.progress.steps_per_second))
        await driver.adoptions.settle()  # of states fetched while the learner started
        driver.learner, learner.on_obeyed = learner, driver.tape.obeyed
        self._dependents.take(learner)
        heads = [head_of(machine.held_chain.certificates) for machine in driver.engine.machines]
        others = dict(enumerate(driver.anchors.all_anchors()))
        for fragment, (ours, its) in enumerate(zip(heads, starting.heads, strict=False)):
            if ours == its:
                del others[fragment]
        driver.tape.life(learner.ready, driver.anchors.all_newest(), bool(others))
        await learner.load(others)
        learner.follow(*certified_progress(driver.engine))
        self._tasks.spawn(self._until_ended(learner))

    def _on_steps(self, steps: Steps) -> None:
        progress, driver = self.progress, self._driver
        if steps.skipped > progress.skipped:
            driver.counters.events["step_skipped"] += steps.skipped - progress.skipped
            log.warning("step_skipped", reason="loss or gradient is not finite", total=steps.skipped)
        progress.report(steps, driver.now)
        if steps.entries:
            note_step(driver.counters)
        driver.feed(Progress(progress.steps, progress.steps_per_second))
        watch_steps(progress.step_seconds, driver.engine.core.pace, driver.counters)
        if self.learner is not None:
            self.learner.follow(*certified_progress(driver.engine))

    # -- a learner that hangs or is killed

    async def _until_ended(self, learner: LearnerClient) -> None:
        """Wait for the process to end. Replace it if it was killed from outside; else raise the reason."""
        try:
            await learner.wait()
        except LearnerLostError as lost:
            if self._driver.engine.core.draining or learner is not self.learner:
                raise
            note_loss(str(lost), self._driver.counters)
            self._standstill.count(self._driver.now)
            self._standstill.check_hope()
            await self._replace(learner)

    async def _watch(self) -> None:
        """Watch for hangs until cancelled. No round waits for a hanging learner; a new one continues from its save."""
        standstill, driver = self._standstill, self._driver
        while self.learner is not None:
            await asyncio.sleep(LOOK_SECONDS)
            wanted = self._dependents.lifecycle.state == "training" and not driver.engine.core.draining
            sign = self._sign_of_life(self.learner) if wanted else None
            if not standstill.look(sign, self.learner.step_seconds, driver.now):
                continue
            self.progress.rest()
            driver.feed(Progress(self.progress.steps, self.progress.steps_per_second))
            if self._options.session is None:  # a session's loop may do anything between its steps
                note_hang(standstill.seconds, driver.counters)
                standstill.check_hope()
                await self._replace(self.learner)

    def _sign_of_life(self, learner: LearnerClient) -> tuple[int, ...]:
        """Return a value that changes with every message of the learner, and while it writes what it saves."""
        return learner.heard, *self._dependents.directory.written()

    async def _replace(self, old: LearnerClient) -> None:
        """Replace the learner as after a crash: its steps that were not contributed are lost."""
        driver, work = self._driver, self._driver.work
        self._dependents.lifecycle.begin_anew()
        self._dependents.limits.learner = driver.learner = None
        await old.kill()
        await work.run(work.snapshots.clear)  # the next process does not hold their steps
        self._options = replace(self._options, spawned=None, limits=self._dependents.limits.in_force)
        saved = await asyncio.to_thread(self._dependents.directory.saved_learner)
        await self._take_part(self.prepare(saved))
