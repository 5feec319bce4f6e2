"""What a node does with the reports of its learner. Its parts have tests of their own; `tests/real` has whole nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.learner_client import LearnerClient
from peer.learner_messages import Ready, StepEntry, Steps
from peer.node import Node
from peer.options import NodeOptions
from peer.run_state import RunState
from peer.slow_steps import slow_advice, step_seconds_max
from peer.stage import certified_progress, versions_certified
from peer.virtual_loop import run_virtual
from tests.peer.test_pump import Peer, Swarm, config_of


class Reporter:
    """A learner's process that makes the steps of a learner here, and reports each."""

    ready = Ready(startup_cpu_seconds=0.0, parameters=1, data_digest=bytes(32), step=0)

    def __init__(self, peer: Peer, on_steps: Callable[[Steps], None]) -> None:
        self.told: list[tuple[int, int | None]] = []
        self._learner = peer.learner.learner
        self._on_steps = on_steps
        self._busy_seconds = 0.0

    def set_progress(self, steps: int, window: int | None) -> None:
        self.told.append((steps, window))

    async def make(self, count: int, seconds_each: float) -> None:
        """So many steps of this length."""
        for _ in range(count):
            await asyncio.sleep(seconds_each)
            self._learner.step()
            self._busy_seconds += seconds_each
            entry = StepEntry(step=self._learner.step_count, loss=1.0, tokens=32)
            self._on_steps(Steps(entries=(entry,), dropped=0, cpu_seconds=0.0, busy_seconds=self._busy_seconds))


async def reporter_of(node: Node, peer: Peer) -> Reporter:
    """The learner that a node starts for itself."""
    with pytest.MonkeyPatch.context() as patch:

        async def start(*settings: Any) -> Reporter:
            return Reporter(peer, settings[4])

        patch.setattr(LearnerClient, "start", start)
        await node._start_learner(RunState((), (), peer.pump.anchors, (), learner_state=None))
    assert node.training is not None
    assert isinstance(node.training.client, Reporter)
    return node.training.client


def test_every_report_reaches_the_rounds_the_owner_and_the_learner_again(tmp_path: Path) -> None:
    """Rounds are paced by it, steps that are too long are told, and the learner follows what is certified."""

    async def main() -> None:
        swarm = Swarm(config_of(), 1, tmp_path)
        await swarm.start()
        (peer,) = swarm.peers
        engine, book = peer.pump.engine, peer.pump.book
        node = Node(NodeOptions(tmp_path), peer.identity, "learner")
        node.manifest, node.pump = engine.core.manifest, peer.pump
        learner = await reporter_of(node, peer)
        longest = step_seconds_max(engine.core.pace)

        await learner.make(12, longest / 2)
        assert engine.core.steps == 12
        assert engine.core.steps_per_second == pytest.approx(2 / longest)
        assert slow_advice(engine.core.pace, book) == ""
        assert versions_certified(engine) > 0, "rounds open at these steps"
        progress, _ = certified_progress(engine)
        assert learner.told[-1] == (progress * engine.core.pace.steps_per_version // engine.core.pace.fragments, None)
        assert learner.told == sorted(set(learner.told))

        await learner.make(24, 2 * longest)
        assert "a step takes 3.2 s here" in slow_advice(engine.core.pace, book)
        await learner.make(24, longest / 2)
        assert slow_advice(engine.core.pace, book) == ""
        assert (book.events["steps_too_long"], book.events["steps_in_time"]) == (1, 1)
        await swarm.close()

    run_virtual(main())
