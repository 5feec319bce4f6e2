"""Changing the limits of a running peer: all of its parts respect them, or nothing changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.cli.arguments import run_config
from peer.machine.limits import SETTINGS_NAME, Limits, PeerSettings
from peer.node.learner_control import LearnerControl, learner_bytes
from peer.node.live_limits import LiveLimits
from peer.node.options import NodeOptions
from peer.rounds.counters import LearnerProgress


class Part:
    """Network, manners, pump and learner in one: it writes down what it is told."""

    def __init__(self) -> None:
        self.respected: list[Limits] = []
        self.given: list[float] = []
        self.of_day: list[float] = []
        self.config: RunConfig = run_config(None, None)

    @property
    def itself(self) -> Part:
        return self

    engine = core = answering = strangers = transfers = states = itself

    def give_of_day(self, bytes_per_day: float) -> None:
        self.of_day.append(bytes_per_day)

    def give_at_most(self, bytes_per_second: float, bytes_per_day: float) -> None:
        self.given.append(bytes_per_second)

    def check(self, limits: Limits) -> None:
        learner_bytes(self.config, limits)

    def respect(self, limits: Limits) -> None:
        self.respected.append(limits)


class Client:
    """A learner's process, as far as its threads go."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.paces: list[tuple[float, float]] = []

    def set_pace(self, step_seconds: float, compute_share: float) -> None:
        self.paces.append((step_seconds, compute_share))

    def set_threads(self, threads: int) -> None:
        self.threads.append(threads)


@pytest.mark.parametrize("device", ["CPU, 3 threads", "NVIDIA H200"])
def test_a_learner_computes_with_as_many_cores_as_it_is_allowed(tmp_path: Path, device: str) -> None:
    client, progress = Client(), LearnerProgress()
    progress.device = device
    options = NodeOptions(tmp_path, threads=3)
    training = LearnerControl(client, None, options, progress)  # type: ignore[arg-type]
    for cores in (0, 8, 2, 2, 0):
        training.respect(Limits(cpu_cores=cores))
    assert client.threads == [2, 3]
    assert progress.device == device
    training.respect(Limits(cpu_cores=1))
    assert progress.device == device.replace("3 threads", "1 thread")


def test_a_learner_computes_so_much_of_the_time_as_it_is_allowed(tmp_path: Path) -> None:
    client = Client()
    options = NodeOptions(tmp_path, step_seconds=2.0, limits=Limits(compute_share=0.5))
    training = LearnerControl(client, None, options, LearnerProgress())  # type: ignore[arg-type]
    for share in (0.5, 0.25, 0.25, 1.0):
        training.respect(Limits(compute_share=share))
    assert client.paces == [(2.0, 0.25), (2.0, 1.0)]


def desk(folder: Path, part: Any) -> LiveLimits:
    made = LiveLimits(NodeOptions(folder, limits=Limits(cpu_cores=4)), part, part, part)
    made.training = part
    return made


def test_a_change_is_respected_at_once_and_kept_for_the_next_start(tmp_path: Path) -> None:
    async def course() -> None:
        part = Part()
        ours = desk(tmp_path, part)
        answer = await ours.change(["upload_mbit=8", "hours=22:00-07:00"])
        assert answer == ours.view()
        assert {one.value for one in answer.limits} >= {8.0, "22:00-07:00", 4}
        assert part.respected == 3 * [Limits(cpu_cores=4, upload_mbit=8.0, hours="22:00-07:00")]
        assert part.given == [0.5e6]

    asyncio.run(course())
    # what the command line said is not for ever
    assert PeerSettings.load(tmp_path).limits == Limits(upload_mbit=8.0, hours="22:00-07:00")


@pytest.mark.parametrize(
    "change",
    ["upload_mbit=0.5", "upload_mbit=fast", "upload=3", "hours=never", "gpu_memory_share=2", "cpu_cores=1.5", "",
     "memory_gigabytes=0.01"],
)  # fmt: skip
def test_a_bad_value_is_a_sentence_and_nothing_changes(tmp_path: Path, change: str) -> None:
    async def course() -> None:
        part = Part()
        ours = desk(tmp_path, part)
        before = ours.view()
        with pytest.raises(UsageError) as caught:
            await ours.change(["pause_on_battery=false", change])
        assert "\n" not in str(caught.value)
        assert ours.view() == before
        assert part.respected == []

    asyncio.run(course())
    assert not (tmp_path / SETTINGS_NAME).exists()
