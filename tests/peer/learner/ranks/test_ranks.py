"""A learner of several processes, as its peer sees it: it talks to one, and all are gone when one is."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.data.windows import TrainingWindows, load_tokens
from peer.learner.client import LearnerClient
from peer.learner.learner import make_learner
from peer.learner.messages import LearnerSettings, Start, Steps
from peer.learner.ranks.first_rank import cpu_seconds_of
from peer.learner.spawn import LearnerLostError, LearnerSpawn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=64, layers=1, heads=2, intermediate_size=72),
    data=DataSpec(context_tokens=16, sequences_per_step=4),
    inner=InnerSpec(warmup_steps=4, optimizer="adamw"),
    pace=PaceSpec(fragments=3, steps_per_version=6),
)
ENDING_SECONDS = 60.0
STEPS = 3


class Losses(dict[int, float]):
    """Losses by step, as a learner reports them."""

    def __init__(self) -> None:
        super().__init__()
        self.more = asyncio.Event()


@asynccontextmanager
async def started(settings: LearnerSettings, state: Path | None = None) -> AsyncIterator[tuple[LearnerClient, Losses]]:
    """Start a learner; yields it and the losses that it reports."""
    losses = Losses()

    def on_steps(steps: Steps) -> None:
        losses.update((one.step, one.loss) for one in steps.entries if one.loss is not None)
        losses.more.set()

    start = Start(
        config=CONFIG,
        run_key=b"run",
        peer_id="peer",
        settings=settings,
        paused=True,
        state_path=None if state is None else str(state),
    )
    learner = await LearnerClient.start(start, LearnerSpawn.begin(), on_steps)
    try:
        yield learner, losses
    finally:
        await learner.kill()


async def train(learner: LearnerClient, losses: Losses) -> int:
    """Train until some more steps are made, then pause; returns the total number of steps."""
    wanted = len(losses) + STEPS
    learner.resume()
    while len(losses) < wanted:
        losses.more.clear()
        await losses.more.wait()
    learner.pause()
    return (await learner.snapshot(0))[1].at_step


def family(pid: int) -> list[int]:
    """Return the child processes of this one."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(("devices", "sharded"), [(2, False), (2, True), (4, True)])
def test_a_peer_talks_to_one_and_all_of_them_do_it(devices: int, sharded: bool, tmp_path: Path) -> None:
    device, path = ",".join(["cpu"] * devices), tmp_path / "inner.safetensors"
    settings = LearnerSettings(device=device, sharded=sharded, threads=devices)
    twin = make_learner(CONFIG, TrainingWindows(load_tokens(CONFIG.data).train, CONFIG.data, b"run", "peer"))
    twin.set_progress(4)

    async def converse() -> None:
        async with started(settings) as (learner, losses):
            assert learner.ready.device == f"{devices} × CPU, 1 thread"
            assert ("share the model" in learner.ready.use) == sharded
            assert learner.ready.startup_cpu_seconds > 1.3 * cpu_seconds_of(learner.pid), "it counts the others"
            learner.follow(2)  # four steps
            made = await train(learner, losses)
            vector, counters = await learner.snapshot(0)
            assert counters.steps == made
            expected = [twin.step().loss for _ in range(made)]
            learner.change(2 * devices, 1.0)
            for one in (learner, twin):
                adopted = one.adopt(0, vector * 0.9, vector, counters.steps, counters.tokens)
                if adopted is not None:
                    await adopted
            await learner.save(path)
            expected += [twin.step().loss for _ in range(await train(learner, losses) - made)]
            await learner.stop()
            assert learner.failure is None
            assert [losses[step] for step in sorted(losses)] == pytest.approx(expected, rel=1e-5)
        async with started(settings, path) as (again, new):
            assert again.ready.step == made
            await train(again, new)
            assert all(losses[step] == new[step] for step in range(made + 1, made + STEPS)), "the same bits"

    asyncio.run(converse())


@pytest.mark.parametrize("victim", [0, 2])
def test_one_that_is_killed_ends_them_all_and_another_learner_may_do(victim: int) -> None:
    async def lose() -> None:
        async with started(LearnerSettings(device="cpu,cpu,cpu")) as (learner, losses):
            await train(learner, losses)
            learner.resume()
            processes = [learner.pid, *family(learner.pid)]
            ends = [os.pidfd_open(one) for one in processes]
            os.kill(processes[victim], signal.SIGKILL)
            with pytest.raises(LearnerLostError, match="was killed" if victim == 0 else "ended by signal 9"):
                await asyncio.wait_for(learner.wait(), ENDING_SECONDS)
            for end in ends:
                assert select.select([end], [], [], ENDING_SECONDS)[0] == [end]
                os.close(end)

    asyncio.run(lose())


def test_one_that_is_told_something_after_it_was_killed_is_missed() -> None:
    """Its closed socket is not taken for that of the peer, whose end would be normal."""

    async def lose() -> None:
        async with started(LearnerSettings(device="cpu,cpu")) as (learner, losses):
            await train(learner, losses)
            (other,) = family(learner.pid)
            end = os.pidfd_open(other)
            os.kill(other, signal.SIGKILL)
            assert select.select([end], [], [], ENDING_SECONDS)[0] == [end]
            os.close(end)
            with pytest.raises(LearnerLostError, match="ended by signal 9"):
                await learner.snapshot(0)

    asyncio.run(lose())
