"""Saving a peer's state, also to a disk that takes nothing: the owner is told, and training goes on."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError
from dht.units import GIGABYTE_BYTES
from peer.learner.client import LearnerClient
from peer.learner.messages import Done
from peer.machine.limits import Limits
from peer.machine.tasks import Tasks
from peer.node.checkpointer import (
    CHECKPOINT_SECONDS,
    HELD_SECONDS,
    LEARNER_SECONDS,
    SPILL_SHARE,
    Checkpointer,
    learner_rest_seconds,
    rest_seconds,
    spare_bytes,
)
from peer.node.status import advice_of
from peer.storage.run_directory import RunDirectory, head_of
from peer.storage.spill_files import SpillFiles
from tests.peer.rounds.test_driver import Swarm, config_of
from tests.peer.virtual_loop import run_virtual

DONE = Done(ticket=0, at_step=1)


@pytest.fixture
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run thread work inline, so that virtual time does not pass while a thread works."""

    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


async def one_peer(folder: Path, config: RunConfig | None = None) -> tuple[Swarm, RunDirectory, Checkpointer]:
    """Return a swarm of one peer, the run directory it saves into, and its checkpointer."""
    swarm = Swarm(config or config_of(), 1, folder)
    await swarm.start()
    driver = swarm.peers[0].driver
    directory = RunDirectory(folder, driver.engine.core.manifest.run_id)
    return swarm, directory, Checkpointer(directory, driver, swarm.peers[0].presence)


@pytest.mark.usefixtures("_no_threads")
def test_a_checkpoint_that_the_disk_does_not_take_is_told_until_one_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = Swarm(config_of(), 2, tmp_path)
        await swarm.start()
        peer = swarm.peers[0]
        driver, directory = peer.driver, RunDirectory(tmp_path, peer.driver.engine.core.manifest.run_id)
        checkpointer = Checkpointer(directory, driver, peer.presence)
        saving = asyncio.get_running_loop().create_task(checkpointer.run())
        directory.path.rename(tmp_path / "away")
        directory.path.touch()  # nothing can be written there, even as root
        await swarm.train(8)
        await asyncio.sleep(CHECKPOINT_SECONDS)
        assert driver.counters.events["checkpoint_failed"] == 1
        assert advice_of(driver).startswith("no checkpoint could be written: ")
        assert sum(peer.versions) > 0
        with pytest.raises(LocalError):
            await checkpointer.save_now()
        with pytest.raises(LocalError):
            await checkpointer.save_last()
        assert driver.counters.events["checkpoint_failed"] == 3

        directory.path.unlink()
        (tmp_path / "away").rename(directory.path)
        await checkpointer.save()
        assert advice_of(driver) == ""
        assert driver.counters.events["checkpoint_failed"] == 3
        saving.cancel()
        await swarm.close()

    run_virtual(main())


@pytest.mark.usefixtures("_no_threads")
def test_files_that_an_ended_learner_leaves_are_removed_before_the_next_one_saves(tmp_path: Path) -> None:
    """When it is killed, safetensors leaves a temporary file as large as all that it was to write."""
    found: list[list[str]] = []

    async def save(path: Path) -> Done:
        found.append([file.name for file in path.parent.iterdir()])
        save_file({"theta": torch.zeros(3)}, path)
        (path.parent / ".tmp6Xq2Bd").touch()
        return DONE

    async def main() -> None:
        swarm, directory, checkpointer = await one_peer(tmp_path)
        checkpointer.learner = cast(LearnerClient, SimpleNamespace(save=save))
        for _ in range(2):
            await checkpointer.save_now()
        assert found == [[], []]
        assert directory.saved_learner() is not None
        assert not list(directory.path.glob(".tmp*"))
        await swarm.close()

    run_virtual(main())


def heads_of(swarm: Swarm) -> tuple[bytes, ...]:
    """Return the head of each chain that the swarm's first peer holds."""
    return tuple(head_of(machine.held_chain.certificates) for machine in swarm.peers[0].driver.engine.machines)


def learner_with(save: Callable[[Path], Coroutine[Any, Any, Done]]) -> LearnerClient:
    """Return a fake learner that can only save, in the given way."""

    async def kill() -> None: ...

    return cast(LearnerClient, SimpleNamespace(save=save, kill=kill, progress=SimpleNamespace(step_seconds=None)))


@pytest.mark.usefixtures("_no_threads")
def test_the_last_save_waits_for_a_learner_for_as_long_as_it_writes(tmp_path: Path) -> None:
    async def save(path: Path) -> Done:
        for size in range(1, 5):
            (path.parent / ".tmp6Xq2Bd").write_bytes(bytes(4096 * size))
            await asyncio.sleep(LEARNER_SECONDS - 1.0)
        save_file({"theta": torch.zeros(3)}, path)
        return DONE

    async def main() -> None:
        swarm, directory, checkpointer = await one_peer(tmp_path)
        checkpointer.learner = learner_with(save)
        await checkpointer.save_last()
        core = swarm.peers[0].driver.engine.core
        held = directory.load(core.manifest, core.rules)
        assert held.learner_state is not None
        assert held.learner_heads == heads_of(swarm)
        await swarm.close()

    run_virtual(main())


@pytest.mark.usefixtures("_no_threads")
def test_the_last_save_waits_for_a_learner_that_still_writes_what_nobody_waits_for(tmp_path: Path) -> None:
    """Before, the folder was cleared while it wrote, so it seemed to write nothing and was killed."""
    begun, one_at_a_time = asyncio.Event(), asyncio.Lock()

    async def write(path: Path) -> Done:
        async with one_at_a_time:
            for size in range(1, 5):
                begun.set()
                if size == 1 or path.with_name(".tmp6Xq2Bd").exists():  # otherwise into an unlinked file
                    path.with_name(".tmp6Xq2Bd").write_bytes(bytes(4096 * size))
                await asyncio.sleep(LEARNER_SECONDS - 1.0)
            save_file({"theta": torch.zeros(3)}, path)
            return DONE

    async def save(path: Path) -> Done:
        return await asyncio.shield(asyncio.ensure_future(write(path)))

    async def main() -> None:
        swarm, directory, checkpointer = await one_peer(tmp_path)
        checkpointer.learner = learner_with(save)
        tasks = Tasks(lambda error: None)
        tasks.spawn(checkpointer.save())
        await begun.wait()
        await tasks.end()
        await checkpointer.save_last()
        core = swarm.peers[0].driver.engine.core
        assert directory.load(core.manifest, core.rules).learner_heads == heads_of(swarm)
        await swarm.close()

    run_virtual(main())


@pytest.mark.usefixtures("_no_threads")
def test_the_last_save_does_without_a_learner_that_cannot_save(tmp_path: Path) -> None:
    async def save(_: Path) -> Done:
        raise LocalError("the learner refused: no room")

    async def main() -> None:
        swarm, directory, checkpointer = await one_peer(tmp_path)
        checkpointer.learner = learner_with(save)
        with pytest.raises(LocalError, match="all else is saved"):
            await checkpointer.save_last()
        core = swarm.peers[0].driver.engine.core
        assert directory.load(core.manifest, core.rules).learner_state is None
        await swarm.close()

    run_virtual(main())


@pytest.mark.usefixtures("_no_threads")
def test_states_that_are_on_disk_are_not_held_for_as_long_as_the_learner_writes(tmp_path: Path) -> None:
    """Before, each version of a fragment that rounds made meanwhile stayed in memory beside the previous one."""
    held: list[bool] = []

    async def main() -> None:
        swarm, _, checkpointer = await one_peer(tmp_path)
        anchors = swarm.peers[0].driver.anchors
        states = [weakref.ref(anchors.current(fragment).anchor) for fragment in range(len(anchors.layouts))]

        async def save(path: Path) -> Done:
            save_file({"theta": torch.zeros(3)}, path)
            await asyncio.sleep(0)  # the states are being written meanwhile
            await swarm.train(32)
            gc.collect()
            held.extend(state() is not None for state in states)
            return DONE

        checkpointer.learner = learner_with(save)
        await checkpointer.save_now()
        assert min(swarm.peers[0].versions) > 0
        await swarm.close()

    run_virtual(main())
    assert held == [False] * 2


@pytest.mark.usefixtures("_no_threads")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_part_of_what_is_saved_lies_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, momentum: float
) -> None:
    """Before, all states and the learner's part were there twice, so a disk had to hold everything twice."""
    most: list[Counter[str]] = []

    def commit(directory: RunDirectory, *arguments: Any) -> int:
        written_bytes = write(directory, *arguments)
        most.append(Counter(path.name.split("-")[0] for path in directory.path.iterdir() if path.is_file()))
        return written_bytes

    async def save(path: Path) -> Done:
        save_file({"theta": torch.rand(3)}, path)
        return DONE

    async def main() -> None:
        config = config_of(fragments=4)
        config = config.model_copy(update={"outer": config.outer.model_copy(update={"momentum": momentum})})
        swarm, directory, checkpointer = await one_peer(tmp_path, config)
        core = swarm.peers[0].driver.engine.core
        checkpointer.learner = learner_with(save)
        saving = asyncio.get_running_loop().create_task(checkpointer.run())
        for _ in range(6):
            await swarm.train(8)  # two versions of each fragment
            await asyncio.sleep(CHECKPOINT_SECONDS / 2)
        saving.cancel()
        await checkpointer.save_now()
        held = directory.load(core.manifest, core.rules)
        assert list(held.held) == swarm.peers[0].versions
        assert held.learner_heads == heads_of(swarm)
        await swarm.close()

    write = RunDirectory.commit
    monkeypatch.setattr(RunDirectory, "commit", commit)
    run_virtual(main())
    assert len(most) >= 6
    assert max(one["learner"] for one in most) == 2
    assert max(one["anchor"] for one in most) == (6 if momentum else 8)
    assert max(one["anchor"] for one in most if one["learner"] == 2) == 4


@pytest.mark.usefixtures("_no_threads")
def test_a_host_saves_the_states_of_one_moment(tmp_path: Path) -> None:
    async def main() -> None:
        config = config_of()
        config = config.model_copy(update={"outer": config.outer.model_copy(update={"momentum": 0.9})})
        swarm, directory, checkpointer = await one_peer(tmp_path, config)
        core = swarm.peers[0].driver.engine.core
        for _ in range(2):
            await swarm.train(8)
            await checkpointer.save(*checkpointer._turns()[:1])
            assert list(directory.load(core.manifest, core.rules).held) == swarm.peers[0].versions
        await swarm.close()

    run_virtual(main())


@pytest.mark.parametrize("part", ["stage", "commit"])
def test_the_last_save_waits_for_the_one_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """A thread cannot be killed, and two that write at once would overwrite each other's files."""
    written, going_on = threading.Event(), list[int]()
    write = getattr(RunDirectory, part)

    def slowly(directory: RunDirectory, *arguments: Any) -> Any:
        going_on.append(1)
        assert len(going_on) == 1, "two at once"
        written.wait(10.0)
        going_on.pop()
        return write(directory, *arguments)

    async def main() -> None:
        swarm, _, checkpointer = await one_peer(tmp_path)
        monkeypatch.setattr(RunDirectory, part, slowly)
        tasks = Tasks(lambda error: None)
        tasks.spawn(checkpointer.save())
        while not going_on:  # noqa: ASYNC110
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, written.set)
        await tasks.end()
        await checkpointer.save_last()
        assert "checkpoint_failed" not in swarm.peers[0].driver.counters.events
        await swarm.close()

    asyncio.run(main())


def test_a_vote_that_the_disk_does_not_take_is_told_until_one_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = Swarm(config_of(round_seconds=2.0), 3, tmp_path)
        await swarm.start()
        peer = swarm.peers[0]
        driver, votes = peer.driver, tmp_path / peer.identity.peer_id
        votes.mkdir()  # no file can be written there
        await swarm.train(16)
        assert driver.counters.events["vote_not_written"] > 0
        assert advice_of(driver).startswith("no vote could be written: ")
        steps, versions = peer.learner.learner.step_count, sum(peer.versions)
        assert versions > 0, "the others certify without it, and it follows"

        votes.rmdir()
        await swarm.train(40)
        assert advice_of(driver) == ""
        assert peer.learner.learner.step_count == steps + 40
        assert sum(peer.versions) > versions
        await swarm.close()

    run_virtual(main())


def test_saves_keep_to_what_may_be_written_and_to_the_learners_time() -> None:
    limits = Limits(written_gigabytes_per_hour=10 / (1 - SPILL_SHARE))
    assert rest_seconds(1e6, limits) == CHECKPOINT_SECONDS
    assert rest_seconds(1e6, limits, 2) == CHECKPOINT_SECONDS / 2, "each of two turns as often"
    assert rest_seconds(GIGABYTE_BYTES, limits, 2) == pytest.approx(360.0)
    assert rest_seconds(GIGABYTE_BYTES, Limits(written_gigabytes_per_hour=0)) == CHECKPOINT_SECONDS
    assert learner_rest_seconds(HELD_SECONDS) == 0.0
    assert learner_rest_seconds(2.0) == 200.0


@given(st.floats(0, 1e13), st.floats(0.01, 1e4))
def test_saves_and_what_others_fetch_are_together_what_may_be_written(written_bytes: float, gigabytes: float) -> None:
    limits = Limits(written_gigabytes_per_hour=gigabytes)
    seconds = rest_seconds(written_bytes, limits)
    spare = spare_bytes(seconds, written_bytes, limits)
    assert spare > 0
    assert (written_bytes + spare) / GIGABYTE_BYTES == pytest.approx(gigabytes * seconds / 3600)
    assert spare_bytes(seconds, written_bytes, Limits(written_gigabytes_per_hour=0)) == math.inf


def test_five_years_of_saving_are_what_a_disk_bears() -> None:
    assert Limits().written_gigabytes_per_hour * 24 * 365.25 * 5 == pytest.approx(600e3, rel=0.01)


@pytest.mark.usefixtures("_no_threads")
def test_states_do_not_wait_for_the_time_that_a_learner_is_left(tmp_path: Path) -> None:
    learner_at, all_at = list[float](), list[float]()

    async def save(path: Path) -> Done:
        learner_at.append(asyncio.get_running_loop().time())
        save_file({"theta": torch.rand(3)}, path)
        return DONE.model_copy(update={"seconds": 2.0})

    async def main() -> None:
        swarm, _, checkpointer = await one_peer(tmp_path)
        checkpointer.learner = learner_with(save)
        take = swarm.peers[0].driver.counters.take
        swarm.peers[0].driver.counters.take = lambda what: (
            all_at.append(asyncio.get_running_loop().time()),
            take(what),
        )
        saving = asyncio.get_running_loop().create_task(checkpointer.run())
        await asyncio.sleep(1000.0)
        saving.cancel()
        await swarm.close()

    run_virtual(main())
    assert len(learner_at) >= 4
    for earlier, later in pairwise(learner_at):
        assert 200.0 <= later - earlier <= 200.0 + CHECKPOINT_SECONDS
    states_at = [one for one in all_at if one not in learner_at]
    assert max(later - earlier for earlier, later in pairwise(states_at)) <= 1.5 * CHECKPOINT_SECONDS + 1.0


@pytest.mark.usefixtures("_no_threads")
@pytest.mark.parametrize(("beyond", "counted"), [(0, 0), (5, 5), (1000, 10)])
def test_the_next_save_waits_for_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int, counted: int
) -> None:
    """The pause grows with the bytes of the last save, and with those spilled for fetching peers beyond their budget.

    The latter at most double it.
    """
    saved_at, spill_files = list[float](), SpillFiles(tmp_path)

    def commit(*_: Any) -> int:
        saved_at.append(asyncio.get_running_loop().time())
        spill_files.allow(-beyond * GIGABYTE_BYTES)  # as if that much more had been needed
        return 10 * GIGABYTE_BYTES

    async def main() -> None:
        swarm, _, checkpointer = await one_peer(tmp_path)
        swarm.peers[0].driver.anchors.spill_files = spill_files
        monkeypatch.setattr(RunDirectory, "commit", commit)
        saving = asyncio.get_running_loop().create_task(checkpointer.run())
        await asyncio.sleep(3.5 * 3600 * (10 + counted) / 10)
        saving.cancel()
        hours = (10 + counted) / Limits().written_gigabytes_per_hour / (1 - SPILL_SHARE)
        assert [later - earlier for earlier, later in pairwise(saved_at)] == pytest.approx([3600 * hours] * 3)
        await swarm.close()

    run_virtual(main())


def test_a_save_for_which_a_silent_learner_is_ended_follows_the_one_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two threads would write one folder: the first cannot be killed together with the learner."""
    going_on, most, release = list[int](), list[int](), threading.Event()
    stage = RunDirectory.stage

    def slowly(directory: RunDirectory, *arguments: Any) -> Any:
        going_on.append(1)
        most.append(len(going_on))
        release.wait(10.0)
        going_on.pop()
        return stage(directory, *arguments)

    async def save(_: Path) -> Done:
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")

    async def main() -> None:
        swarm, _, checkpointer = await one_peer(tmp_path)
        monkeypatch.setattr(RunDirectory, "stage", slowly)
        monkeypatch.setattr("peer.node.checkpointer.LEARNER_SECONDS", 0.01)
        checkpointer.learner = learner_with(save)
        asyncio.get_running_loop().call_later(0.2, release.set)
        with pytest.raises(LocalError, match="did not answer"):
            await checkpointer.save_last()
        await swarm.close()

    asyncio.run(main())
    assert most == [1] * 3
