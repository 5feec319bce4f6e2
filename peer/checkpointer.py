"""Saving a peer's run regularly and at its end, without ever stopping the learner for it (design §8)."""

from __future__ import annotations

import asyncio

import structlog

from dht.errors import MusterError
from peer.pump import Pump
from peer.run_state import Captured, RunDirectory
from peer.training import Training

log = structlog.get_logger(__name__)

CHECKPOINT_SECONDS = 30.0


class Checkpointer:
    """Writes one checkpoint at a time; a disk that refuses is told in the log, and training goes on."""

    def __init__(self, directory: RunDirectory, pump: Pump) -> None:
        self._directory = directory
        self._pump = pump
        self._turn = asyncio.Lock()
        self.training: Training | None = None

    async def run(self) -> None:
        """Save every CHECKPOINT_SECONDS until cancelled."""
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            await self.save()

    async def save(self) -> None:
        """States, certificates and learner of one moment."""
        async with self._turn:
            try:
                await self._pump.settle_adoptions()
                captured = self._capture()
                learner_file = None
                if self.training is not None:
                    learner_file = self._directory.learner_file
                    # nothing was awaited since `_capture`: the learner gets this before any later adoption
                    await self.training.client.save(learner_file)
                await asyncio.to_thread(self._directory.save, captured, learner_file)
            except MusterError as error:
                self._pump.book.events["checkpoint_failed"] += 1
                log.error("checkpoint_failed", reason=str(error))

    def _capture(self) -> Captured:
        machines = self._pump.engine.machines
        held = tuple(machine.held for machine in machines)
        chains = tuple(
            tuple(one for one in machine.chain.certificates if one.version <= machine.held) for machine in machines
        )
        states = tuple(self._pump.anchors.current(fragment) for fragment in range(len(machines)))
        return Captured(held, states, chains)
