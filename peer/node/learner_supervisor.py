"""A learner's part of its peer: the process is started, takes part, is watched, and is replaced where it hangs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from coordinator.core.events import Progress
from dht.errors import LocalError
from peer.learner.messages import Steps
from peer.machine.tasks import Tasks
from peer.node.checkpointer import Checkpointer
from peer.node.hang_detector import LOOK_SECONDS, HangDetector, note_hang, note_step
from peer.node.learner_control import LearnerControl
from peer.node.lifecycle import Lifecycle, certified_progress
from peer.node.live_limits import LiveLimits
from peer.node.options import NodeOptions
from peer.node.slow_steps import watch_steps
from peer.rounds.counters import LearnerProgress
from peer.rounds.driver import RoundDriver
from peer.storage.run_directory import RunDirectory

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Starting:
    """A process that is on its way. `fresh`: it has to begin with what the peer holds."""

    control: asyncio.Task[LearnerControl]
    fresh: bool


@dataclass(frozen=True, slots=True)
class Around:
    """The parts of a peer that follow its learner."""

    directory: RunDirectory
    checkpointer: Checkpointer
    stage: Lifecycle
    limits: LiveLimits

    def take(self, training: LearnerControl) -> None:
        """A learner's process is ready."""
        self.checkpointer.training = self.stage.training = training
        self.limits.begin_training(training)


class LearnerSupervisor:
    """Of one peer, whose learner processes follow each other. `training` is None until the first is ready."""

    def __init__(
        self, options: NodeOptions, driver: RoundDriver, tasks: Tasks, progress: LearnerProgress, around: Around
    ) -> None:
        self.progress = progress
        self.training: LearnerControl | None = None
        self._options = options
        self._driver = driver
        self._tasks = tasks
        self._around = around

    def prepare(self, state: Path | None, behind: bool = False) -> Starting:
        """Start a process, paused, that goes on from this state; `behind`: versions have been certified since."""
        return Starting(self._tasks.begin(self._start(state)), fresh=behind or state is None)

    async def begin(self, starting: Starting) -> None:
        """Take part with the process, as soon as it is ready; raises what `LearnerControl.start` does."""
        await self._take_part(starting)
        self._tasks.spawn(self._watch())

    async def stop(self) -> None:
        """End the process, and have nobody ask it for anything; a session finds the newest anchors afterwards."""
        self._driver.learner = None
        if self.training is None:
            return
        client = self.training.client
        if self._options.session is not None:
            with suppress(LocalError):  # without them it keeps what it has
                await asyncio.to_thread(client.lay_out, self._driver.anchors.all_anchors())
        await client.stop()

    async def _start(self, state: Path | None) -> LearnerControl:
        core = self._driver.engine.core
        self.training = await LearnerControl.start(
            core.manifest, core.me, self._options, state, self.progress, self._on_steps
        )
        return self.training

    async def _take_part(self, starting: Starting) -> None:
        driver = self._driver
        training = await starting.control
        await driver.adoptions.settle()  # of what was fetched while the learner started
        driver.learner, training.client.on_obeyed = training.client, driver.tape.obeyed
        self._around.take(training)
        config, machines = driver.engine.core.manifest.config, driver.engine.machines
        loads = starting.fresh and (any(one.held for one in machines) or config.model.weights == "given")
        driver.tape.life(training.client.ready, driver.anchors.all_newest(), loads)
        if loads:
            await training.client.load_all(driver.anchors.all_anchors())
        training.follow(*certified_progress(driver.engine))
        self._tasks.spawn(training.client.wait())

    def _on_steps(self, steps: Steps) -> None:
        progress, driver = self.progress, self._driver
        if steps.skipped > progress.skipped:
            driver.book.events["step_skipped"] += steps.skipped - progress.skipped
            log.warning("step_skipped", reason="loss or gradient is not finite", total=steps.skipped)
        progress.report(steps, driver.now)
        if steps.entries:
            note_step(driver.book)
        driver.feed(Progress(progress.steps, progress.steps_per_second))
        watch_steps(progress.step_seconds, driver.engine.core.pace, driver.book)
        if self.training is not None:
            self.training.follow(*certified_progress(driver.engine))

    # -- a learner that hangs

    async def _watch(self) -> None:
        """Until cancelled: nobody waits for a learner that hangs, and another one goes on from what it had saved."""
        standstill, driver = HangDetector(), self._driver
        while self.training is not None:
            await asyncio.sleep(LOOK_SECONDS)
            wanted = self._around.stage.state == "training" and not driver.engine.draining
            sign = self._sign_of_life(self.training) if wanted else None
            if not standstill.look(sign, self.training.step_seconds, driver.now):
                continue
            self.progress.rest()
            driver.feed(Progress(self.progress.steps, self.progress.steps_per_second))
            if self._options.session is None:  # what a loop of one's own does between its steps is its own business
                note_hang(standstill.seconds, driver.book)
                standstill.check_hope()
                await self._replace(self.training)

    def _sign_of_life(self, training: LearnerControl) -> tuple[int, ...]:
        """Another one after everything that the learner says, and while it writes what it saves."""
        return training.client.heard, *self._around.directory.written()

    async def _replace(self, old: LearnerControl) -> None:
        """As after a crash: what the old one has learned and not contributed is lost."""
        driver, work = self._driver, self._driver.work
        self._around.stage.begin_anew()
        self._around.limits.training = driver.learner = None
        await old.client.kill()
        await work.run(work.snapshots.clear)  # the next one does not hold what was in them
        self._options = replace(self._options, spawned=None, limits=self._around.limits.in_force)
        saved = await asyncio.to_thread(self._around.directory.saved_learner)
        await self._take_part(self.prepare(saved, behind=True))
