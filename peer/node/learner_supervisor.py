"""A learner's part of its peer: the process is started, takes part, is watched, and is replaced where it hangs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import torch

from coordinator.core.events import Progress
from dht.identity import PeerId
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


class LearnerSupervisor:
    """Of one peer, whose learner processes follow each other."""

    def __init__(
        self, options: NodeOptions, me: PeerId, driver: RoundDriver, directory: RunDirectory, tasks: Tasks
    ) -> None:
        self.progress = LearnerProgress()
        self.training: LearnerControl | None = None  # once its process is ready
        self._options = options
        self._me = me
        self._driver = driver
        self._directory = directory
        self._tasks = tasks
        self._starting: asyncio.Task[None]
        self._fresh = True  # whether its process has to begin with what the peer holds
        self._checkpointer: Checkpointer
        self._stage: Lifecycle
        self._limits: LiveLimits

    def prepare(self, state: Path | None, behind: bool = False) -> None:
        """Start a process, paused, that goes on from this state; `behind`: versions have been certified since."""
        self._starting = self._tasks.begin(self._start(state))
        self._fresh = behind or state is None

    async def begin(self, checkpointer: Checkpointer, stage: Lifecycle, limits: LiveLimits) -> None:
        """Take part with the process, as soon as it is ready; raises what `LearnerControl.start` does."""
        self._checkpointer, self._stage, self._limits = checkpointer, stage, limits
        await self._take_part()
        self._tasks.spawn(self._watch())

    async def _start(self, state: Path | None) -> None:
        manifest = self._driver.engine.core.manifest
        self.training = await LearnerControl.start(
            manifest, self._me, self._options, state, self.progress, self._on_steps
        )

    async def _take_part(self) -> None:
        await self._starting
        training, driver = self.training, self._driver
        assert training is not None
        await driver.adoptions.settle()  # of what was fetched while the learner started
        driver.learner, training.client.on_obeyed = training.client, driver.tape.obeyed
        self._checkpointer.training = self._stage.training = training
        self._limits.begin_training(training)
        config, machines = driver.engine.core.manifest.config, driver.engine.machines
        loads = self._fresh and (any(one.held for one in machines) or config.model.weights == "given")
        driver.tape.life(training.client.ready, driver.anchors.all_newest(), loads)
        if loads:
            await training.client.load_all(torch.cat(driver.anchors.all_anchors()))
        elif self._options.session is not None:
            training.client.lay_out(torch.cat(driver.anchors.all_anchors()))
        training.follow(*certified_progress(driver.engine))
        self._tasks.spawn(training.client.wait())

    def _on_steps(self, steps: Steps) -> None:
        progress, driver = self.progress, self._driver
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
            wanted = self._stage.state == "training" and not driver.engine.draining
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
        return training.client.heard, *self._directory.written()

    async def _replace(self, old: LearnerControl) -> None:
        """As after a crash: what the old one has learned and not contributed is lost."""
        driver, work = self._driver, self._driver.work
        self._stage.begin_anew()
        self._limits.training = driver.learner = None
        await old.client.kill()
        await work.run(work.snapshots.clear)  # the next one does not hold what was in them
        self._options = replace(self._options, spawned=None, limits=self._limits.in_force)
        self.prepare(await asyncio.to_thread(self._directory.saved_learner), behind=True)
        await self._take_part()
