"""The work of a host instead of training: it evaluates the certified model, and exports it if asked to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from coordinator.views.evaluation import Evaluation
from peer.data.text_codec import TextCodec, run_text_codec
from peer.data.token_files import TokenData
from peer.export.exported import Exported
from peer.export.regular import RegularExport
from peer.learner.devices import choose_devices
from peer.learner.memory_estimate import evaluator_bytes
from peer.model.located import located
from peer.node.checkpointer import Checkpointer
from peer.node.options import NodeOptions
from peer.rounds.driver import RoundDriver
from peer.rounds.evaluation_loop import EvaluationLoop, RunPosition
from peer.storage.tokenizer_file import exported_tokenizer, read_tokenizer


class HostEvaluator:
    """Runs the loops of one host. `position` returns the position of the run."""

    def __init__(
        self,
        evaluations: EvaluationLoop,
        checkpointer: Checkpointer,
        position: Callable[[], RunPosition],
        driver: RoundDriver,
    ) -> None:
        self._evaluations = evaluations
        self._checkpointer = checkpointer
        self._position = position
        self._driver = driver
        self._exports: RegularExport | None = None
        self._looks_last = False

    @classmethod
    async def start(
        cls,
        driver: RoundDriver,
        checkpointer: Checkpointer,
        data: TokenData,
        options: NodeOptions,
        position: Callable[[], RunPosition],
    ) -> HostEvaluator:
        """Build the model for evaluations; raises UsageError without a hub to push exports to, or without a device."""
        exports, config = options.export, located(driver.engine.core.manifest.config, options.files.base)

        def text_codec() -> TextCodec | None:
            return run_text_codec(config, read_tokenizer(checkpointer.folder, config.data))

        def make() -> EvaluationLoop:
            share = options.limits.gpu_memory_share
            devices, _ = choose_devices(options.device, lambda _: evaluator_bytes(config), share)
            loop = EvaluationLoop(config, data, driver.anchors.all_anchors, text_codec=text_codec, device=devices[0])
            loop.use(options.limits.threads(options.threads))
            return loop

        evaluations = await asyncio.to_thread(make)
        hosting = cls(evaluations, checkpointer, position, driver)
        if exports is not None:
            hosting._exports = RegularExport(exports, driver.engine.core.signer, hosting._gather, driver.counters)
        return hosting

    @property
    def found(self) -> tuple[Evaluation, ...]:
        """All evaluations since this process started."""
        return tuple(self._evaluations.found)

    @property
    def sample(self) -> str:
        """The newest text that the model wrote."""
        return self._evaluations.newest_text

    @property
    def exports_to(self) -> str:
        """The destination of exports for the public; of a folder only its name."""
        return "" if self._exports is None else self._exports.place

    @property
    def newest_export(self) -> Path | None:
        """The folder of the newest export."""
        return None if self._exports is None else self._exports.newest

    @property
    def doing(self) -> str:
        """The slow work under way, in words."""
        if self._looks_last:
            return "evaluates the model once more"
        return "writes an export" if self._exports is not None and self._exports.busy else ""

    async def run(self) -> None:
        """Evaluate and export until cancelled."""
        loops = [self._evaluations.run(self._position)]
        if self._exports is not None:
            loops.append(self._exports.run(self._position))
        await asyncio.gather(*loops)

    async def look_last(self) -> None:
        """Evaluate all held-out text a last time, and write a sample; for a bounded time."""
        await self._evaluations.look_last(self._position())

    async def end(self) -> None:
        """Evaluate the end of the run, and export it if asked to; a host that only leaves does not evaluate."""
        if self._position().versions >= self._driver.engine.core.manifest.config.versions:
            self._looks_last = True
            await self.look_last()
            self._looks_last = False
        if self._exports is not None:
            await self._exports.export()

    async def _gather(self, licence: str) -> Exported:
        credit = await self._checkpointer.credit()
        captured = await self._checkpointer.capture()
        passed = await self._checkpointer.passed(captured)
        loss = await self._evaluations.loss([state.anchor for state in captured.states])
        manifest = self._driver.engine.core.manifest
        tokenizer = exported_tokenizer(self._checkpointer.folder, manifest.config.data)
        return Exported(manifest, captured, credit, self.found, loss, licence, tokenizer, passed)

    def close(self) -> None:
        """End the evaluation thread."""
        self._evaluations.close()
