"""How a peer handles its learner's reports, and their absence. `tests/real` has real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from coordinator.core.events import PresenceSeen
from dht.errors import LocalError
from peer.learner.client import LearnerClient, LearnerStoppedError
from peer.learner.learner import parameters_of
from peer.learner.messages import Done, Ready, StepEntry, Steps
from peer.learner.spawn import LearnerSpawn
from peer.learner.work_counters import Counters, LearnerProgress
from peer.machine.limits import Limits
from peer.machine.tasks import Tasks
from peer.node.checkpointer import LEARNER_SECONDS, Checkpointer
from peer.node.hang_detector import HANGS_MAX, PATIENCE_SECONDS
from peer.node.learner_supervisor import LearnerDependents, LearnerSupervisor
from peer.node.lifecycle import Lifecycle, certified_progress, versions_certified
from peer.node.options import NodeOptions
from peer.node.slow_steps import slow_advice, step_seconds_max
from peer.node.status import advice_of
from peer.storage.run_directory import RunDirectory, head_of
from tests.peer.memory_transport import LinkPolicy, MemoryNetwork
from tests.peer.node.test_lifecycle import lifecycle_of
from tests.peer.rounds.test_driver import STEP_SECONDS, Peer, Swarm, config_of
from tests.peer.virtual_loop import run_virtual


class Reporter:
    """A fake learner process: it drives a learner in this process, and reports each step until it hangs."""

    ready = Ready(startup_cpu_seconds=0.0, parameters=1, data_digest=bytes(32), step=0)

    def __init__(self, peer: Peer, on_steps: Callable[[Steps], None], progress: LearnerProgress) -> None:
        self.told: list[tuple[int, int | None]] = []
        self.heard = 0
        self.loaded: list[list[int]] = []
        self.references: list[Tensor | None] = []
        self._answering = asyncio.Event()
        self._answering.set()
        self._killed = False
        self._within = peer.learner
        self._anchors = peer.driver.anchors
        self._on_steps = on_steps
        self.progress = progress
        self._busy_seconds = 0.0

    async def make(self, count: int, seconds_each: float) -> None:
        """Make `count` steps of `seconds_each`, and report each."""
        for _ in range(count):
            await asyncio.sleep(seconds_each)
            self._within.learner.step()
            self.report(seconds_each)

    def report(self, seconds: float) -> None:
        """Report one step that took so many seconds."""
        self.heard += 1
        self._busy_seconds += seconds
        entry = StepEntry(step=self._within.learner.step_count, loss=1.0, tokens=32)
        self._on_steps(Steps(entries=(entry,), dropped=0, cpu_seconds=0.0, busy_seconds=self._busy_seconds))

    def hang(self) -> None:
        self._answering.clear()

    @property
    def hangs(self) -> bool:
        return not self._answering.is_set()

    async def _answer(self) -> None:
        await self._answering.wait()
        if self._killed:
            raise LearnerStoppedError

    # -- as `LearnerClient`

    def follow(self, versions: int, window: int | None) -> None:
        self.told.append((versions, window))

    @property
    def step_seconds(self) -> float | None:
        return self.progress.step_seconds

    def resume(self) -> None: ...
    def pause(self) -> None: ...

    def lay_out(self, anchors: Sequence[Tensor]) -> None: ...

    async def snapshot(self, fragment: int) -> tuple[Tensor, Counters]:
        await self._answer()
        return await self._within.snapshot(fragment)

    async def adopt(self, fragment: int, new: Tensor, reference: Tensor | None, *counts: int) -> int:
        await self._answer()
        self.references.append(reference)
        return await self._within.adopt(fragment, new, reference, *counts)

    async def load(self, anchors: Mapping[int, Tensor]) -> None:
        await self._answer()
        self.loaded.append(sorted(anchors))
        for fragment, anchor in anchors.items():
            assert torch.equal(anchor, self._anchors.current(fragment).anchor)
            self._within.learner.adopt(fragment, anchor, None, 0, 0)

    async def save(self, path: Path) -> Done:
        await self._answer()
        save_file({"momentum": torch.ones(3)}, path)
        return Done(ticket=0, at_step=0)

    async def kill(self) -> None:
        self._killed = True
        self._answering.set()
        await asyncio.sleep(0)

    async def wait(self) -> None: ...


class Desk:
    """A fake of the live limits, which nobody changes."""

    learner: LearnerClient | None = None
    in_force = Limits()

    def begin_learner(self, learner: LearnerClient) -> None:
        self.learner = learner


@dataclass
class House:
    """One peer of a swarm with its learner process, and the processes it had before."""

    swarm: Swarm
    folder: Path
    session: Any = None
    learners: list[Reporter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peer = self.swarm.peers.pop(0)
        driver, self.failures = self.peer.driver, list[BaseException]()
        driver.learner = None
        directory = RunDirectory(self.folder, driver.engine.core.manifest.run_id)
        self.tasks = Tasks(self.failures.append)
        self.lifecycle: Lifecycle = lifecycle_of(self.peer)
        self.lifecycle._presence.rounds = 9
        self.checkpointer = Checkpointer(directory, driver, self.peer.presence)
        options = NodeOptions(self.folder, session=self.session)
        dependents = LearnerDependents(directory, self.checkpointer, self.lifecycle, Desk())  # type: ignore[arg-type]
        self.learning = LearnerSupervisor(options, driver, self.tasks, LearnerProgress(), dependents)

    async def begin(self) -> Reporter:
        """Start a learner, and let it take part."""
        with pytest.MonkeyPatch.context() as patch:
            self.patch(patch)
            await self.learning.begin(self.learning.prepare(None))
        self.lifecycle.state = "starting"
        self.lifecycle.advance(self.peer.driver.now)
        return self.learners[-1]

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Patch the learner's start so that fake processes start at once."""

        async def start(*settings: Any) -> Reporter:
            self.learners.append(Reporter(self.peer, *settings[2:4]))
            return self.learners[-1]

        patch.setattr(LearnerClient, "start", start)
        patch.setattr(LearnerSpawn, "begin", lambda program: program)

    async def train(self, steps: int) -> None:
        """Let the others make so many steps, and our learner too if it can."""
        for _ in range(steps):
            for other in self.swarm.peers:
                other.driver.feed(PresenceSeen(self.peer.identity.peer_id, self.peer.presence()))
                self.peer.driver.feed(PresenceSeen(other.identity.peer_id, other.presence()))
            await self.swarm.train(1)
            if self.lifecycle.state == "training" and not self.learners[-1].hangs:
                self.peer.learner.learner.step()
                self.learners[-1].report(STEP_SECONDS)

    async def close(self) -> None:
        await self.tasks.end()
        self.swarm.peers.append(self.peer)
        await self.swarm.close()


async def house_of(folder: Path, peers: int = 1, session: Any = None, network: MemoryNetwork | None = None) -> House:
    swarm = Swarm(config_of(), peers, folder, network=network or MemoryNetwork(7))
    await swarm.start()
    return House(swarm, folder, session)


@pytest.fixture
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run thread work inline, so that virtual time does not pass while a thread works."""

    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


def test_every_report_reaches_the_rounds_the_owner_and_the_learner_again(tmp_path: Path) -> None:
    """Reports pace the rounds, too long steps are reported to the owner, and the learner follows the certificates."""

    async def main() -> None:
        house = await house_of(tmp_path)
        engine, counters = house.peer.driver.engine, house.peer.driver.counters
        learner = await house.begin()
        longest = step_seconds_max(engine.core.pace)

        await learner.make(12, longest / 2)
        assert engine.core.steps == 12
        assert engine.core.steps_per_second == pytest.approx(2 / longest)
        assert slow_advice(engine.core.pace, counters) == ""
        assert versions_certified(engine) > 0, "rounds open at these steps"
        progress, _ = certified_progress(engine)
        assert learner.told[-1] == (progress, None)
        assert learner.told == sorted(learner.told)

        await learner.make(24, 2 * longest)
        assert "a step takes 3.2 s here" in slow_advice(engine.core.pace, counters)
        await learner.make(24, longest / 2)
        assert slow_advice(engine.core.pace, counters) == ""
        assert (counters.events["steps_too_long"], counters.events["steps_in_time"]) == (1, 1)
        await house.close()

    run_virtual(main())


@pytest.mark.usefixtures("_no_threads")
def test_a_learner_that_hangs_is_replaced_by_one_that_begins_with_what_is_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        house = await house_of(tmp_path, peers=2)
        driver, core, lifecycle = house.peer.driver, house.peer.driver.engine.core, house.lifecycle
        hung = await house.begin()
        house.patch(monkeypatch)
        await house.train(24)
        assert lifecycle.state == "training"
        assert core.steps_per_second > 0
        hung.hang()  # perhaps in the middle of a round
        since = driver.now
        while advice_of(driver) == "":
            assert len(house.learners) == 1
            await house.train(1)
            assert driver.now < since + PATIENCE_SECONDS + 5
        assert driver.now > since + PATIENCE_SECONDS
        assert core.steps_per_second == 0, "nobody waits for it"
        assert lifecycle.state == "starting"
        assert "the learner made no step for 31 s" in advice_of(driver)

        await asyncio.sleep(1.0)
        assert len(house.learners) == 2
        assert house.learners[-1].loaded == [list(range(driver.engine.core.pace.fragments))]
        versions, members = versions_certified(driver.engine), driver.counters.certified.members
        lifecycle.advance(driver.now)
        assert lifecycle.state == "training"
        await house.train(32)
        assert versions_certified(driver.engine) > versions
        assert driver.counters.certified.members > members + 8, "its work is in there again"
        assert advice_of(driver) == ""
        assert driver.counters.events["learner_hangs"] == 1
        assert house.failures == []
        await house.close()

    run_virtual(main())


def test_a_learner_that_writes_for_long_what_it_saves_does_not_hang(tmp_path: Path) -> None:
    """It reports nothing meanwhile; safetensors writes a file of another name, which has its full size at once."""

    async def main() -> None:
        house = await house_of(tmp_path, peers=2)
        learner = await house.begin()
        await house.train(24)
        assert house.lifecycle.state == "training"
        learner.hang()
        folder = RunDirectory(tmp_path, house.peer.driver.engine.core.manifest.run_id).learner_file.parent
        folder.mkdir(exist_ok=True)
        with (folder / ".tmp6Xq2Bd").open("wb", buffering=0) as file:
            file.truncate(1 << 20)
            for _ in range(8):
                file.write(bytes(1 << 16))
                await asyncio.sleep(PATIENCE_SECONDS / 2)
            assert house.peer.driver.counters.events["learner_hangs"] == 0
        await house.close()

    run_virtual(main())


@pytest.mark.usefixtures("_no_threads")
@pytest.mark.parametrize("moved", [0, 1])
def test_a_learner_keeps_what_it_made_of_the_versions_that_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """Its part is saved at another moment than the states are: for all other fragments it starts from the anchor."""

    async def main() -> None:
        house = await house_of(tmp_path, peers=2)
        await house.begin()
        await house.train(24)
        heads = [head_of(machine.held_chain.certificates) for machine in house.peer.driver.engine.machines]
        heads[moved] = bytes(32)
        house.patch(monkeypatch)
        await house.learning.begin(house.learning.prepare(tmp_path / "state", heads))
        assert house.learners[-1].loaded == [[moved]]
        await house.close()

    run_virtual(main())


@pytest.mark.usefixtures("_no_threads")
def test_nothing_is_measured_against_what_an_earlier_learner_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier learner's work is in the version its round ends with; the next learner holds none of it."""

    async def main() -> None:
        house = await house_of(tmp_path, peers=2, network=MemoryNetwork(7, LinkPolicy(delay_seconds=0.02)))
        work = house.peer.driver.work
        await house.begin()
        house.patch(monkeypatch)
        training = asyncio.get_running_loop().create_task(house.train(32))
        while not work.snapshots or versions_certified(house.peer.driver.engine) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert house.learning.learner is not None
        await house.learning._replace(house.learning.learner)
        await training
        assert house.learners[-1].references, "rounds went on"
        held = torch.cat(parameters_of(house.peer.learner.learner))
        assert torch.equal(held, torch.cat(house.peer.driver.anchors.all_anchors())), "it has made no steps yet"
        await house.close()

    run_virtual(main())


def test_a_learner_that_hangs_again_and_again_ends_its_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        house = await house_of(tmp_path)
        await house.begin()
        house.patch(monkeypatch)
        monkeypatch.setattr(RunDirectory, "saved_learner", lambda self: None)
        monkeypatch.setattr(asyncio, "to_thread", _at_once)
        for count in range(1, HANGS_MAX + 1):
            assert house.failures == []
            await house.learners[-1].make(8, STEP_SECONDS)
            await asyncio.sleep(PATIENCE_SECONDS + 5)
            assert len(house.learners) == min(count + 1, HANGS_MAX)
            house.lifecycle.advance(house.peer.driver.now)
        assert [type(failure) for failure in house.failures] == [LocalError]
        await house.close()

    run_virtual(main())


async def _at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def test_a_loop_of_ones_own_may_do_what_it_likes_between_two_steps(tmp_path: Path) -> None:
    """It is not ended for it, but nobody waits for it meanwhile."""

    async def main() -> None:
        house = await house_of(tmp_path, session=object())
        core, counters = house.peer.driver.engine.core, house.peer.driver.counters
        learner = await house.begin()
        await learner.make(8, STEP_SECONDS)
        assert core.steps_per_second > 0
        await asyncio.sleep(PATIENCE_SECONDS + 5)
        assert core.steps_per_second == house.learning.progress.steps_per_second == 0
        await asyncio.sleep(3600.0)
        assert (len(house.learners), counters.events["learner_hangs"], house.failures) == (1, 0, [])
        await learner.make(8, STEP_SECONDS)
        assert core.steps_per_second > 0
        await house.close()

    run_virtual(main())


@pytest.mark.usefixtures("_no_threads")
@pytest.mark.parametrize("saved", [True, False])
def test_the_last_save_does_without_a_learner_that_does_not_answer(tmp_path: Path, saved: bool) -> None:
    """So it does while an adoption still waits for its answer; what the learner saved before, if anything, stays."""

    async def main() -> None:
        house = await house_of(tmp_path, peers=2)
        driver = house.peer.driver
        learner = await house.begin()
        await house.train(24)
        if saved:
            await house.checkpointer.save_now()
        learner.hang()
        while not driver.adoptions.waiting:
            await house.train(1)
        since, core = driver.now, driver.engine.core
        with pytest.raises(LocalError, match="did not answer within 6 s"):
            await house.checkpointer.save_last()
        assert driver.now == pytest.approx(since + LEARNER_SECONDS, abs=0.5)
        held = RunDirectory(tmp_path, core.manifest.run_id).load(core.manifest, core.rules)
        assert list(held.held) == house.peer.versions
        assert (held.learner_state is not None) == saved
        assert held.learner_heads != tuple(head_of(chain.certificates) for chain in held.chains)
        assert "checkpoint_failed" not in driver.counters.events
        await house.close()

    run_virtual(main())
