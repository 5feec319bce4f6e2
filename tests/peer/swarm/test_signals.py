"""Signals to `muster swarm`, whether sent by a terminal, `kill` or a service manager."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from coordinator.run.manifest import RunConfig
from peer.swarm.run import Swarm, SwarmOptions
from tests.impatient import Impatient


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_the_training_and_two_end_everything(number: signal.Signals) -> None:
    display = Impatient(number)

    async def main() -> None:
        swarm = Swarm(SwarmOptions(RunConfig(), peers=4), display)
        with swarm._signals():
            await swarm._train()  # nobody is up yet; then it drains
            assert display.phases == ["starting"]
            os.kill(os.getpid(), number)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()

    asyncio.run(main())
