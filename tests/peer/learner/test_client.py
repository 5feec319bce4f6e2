"""The peer's handle on its learner: the messages that it sends, and what it knows of the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from peer.learner.client import LearnerClient
from peer.learner.messages import (
    CertifiedProgress,
    LearnerSettings,
    Message,
    PauseSteps,
    SetPace,
    SnapshotTaken,
    Start,
    StepEntry,
    Steps,
    TakeSnapshot,
    Threads,
)
from peer.learner.shared_memory import SharedSlots
from peer.learner.work_counters import STEPS_TIMED_MIN, LearnerProgress
from peer.machine.buffer_pool import HUGE_PAGE_BYTES
from peer.model.build import parameter_specs
from peer.numerics.fragments import FragmentLayout, TensorSpec, split_fragments
from tests.coordinator.builders import Club

PLAIN = LearnerSettings()


class Told(LearnerClient):
    """A handle without a process, which records the messages that it would send."""

    def __init__(
        self, settings: LearnerSettings = PLAIN, device: str = "", layouts: Sequence[FragmentLayout] = ()
    ) -> None:
        config, nobody, progress = Club.of(2).manifest.config, Any, LearnerProgress()
        progress.device = device
        start = Start(config=config, run_key=b"run", peer_id="me", settings=settings, paused=True)
        usual = split_fragments(parameter_specs(config.model), config.pace.fragments)
        slots = SharedSlots.create(layouts or usual, 1)
        self.slot = slots.slot(0, 0)
        super().__init__(start, nobody, slots, lambda steps: None, progress)  # type: ignore[arg-type]
        self.sent: list[Message] = []

    def _send(self, message: Message) -> None:
        self.sent.append(message)


def told(settings: LearnerSettings = PLAIN, device: str = "") -> Told:
    async def make() -> Told:
        return Told(settings, device)

    return asyncio.run(make())


def test_a_long_snapshot_is_a_copy_in_huge_pages() -> None:
    """A copy into small pages, which are mapped one by one, takes several times as long."""

    async def take() -> tuple[Told, Tensor]:
        learner = Told(layouts=[FragmentLayout(0, (TensorSpec("matrix", (1024, 513)),))])
        learner.slot.fill_(3)
        taking = asyncio.create_task(learner.snapshot(0))
        await asyncio.sleep(0)
        (asked,) = learner.sent
        assert isinstance(asked, TakeSnapshot)
        counts = {"steps": 1, "tokens": 2, "window_first": 0, "window_count": 1, "at_step": 1}
        learner._dispatch(SnapshotTaken(ticket=asked.ticket, **counts))
        return learner, (await taking)[0]

    learner, taken = asyncio.run(take())
    learner.slot.fill_(4)
    assert taken.data_ptr() % HUGE_PAGE_BYTES == 0
    assert bool((taken == 3).all())


def test_a_learner_is_told_once_of_every_new_version_and_lane() -> None:
    """H = 8 steps and two fragments: four steps for each version of either."""
    learner = told()
    for versions, window in ((0, None), (0, None), (1, None), (1, 7), (1, 7), (2, 7)):
        learner.follow(versions, window)
    assert learner.sent == [CertifiedProgress(steps=s, window=w) for s, w in ((0, None), (4, None), (4, 7), (8, 7))]


@pytest.mark.parametrize("device", ["CPU, 3 threads", "NVIDIA H200"])
def test_a_learner_is_told_of_another_number_of_threads(device: str) -> None:
    learner = told(LearnerSettings(threads=3), device)
    for threads in (3, 2, 2, 3):
        learner.change(threads, 1.0)
    assert learner.sent == [Threads(threads=2), Threads(threads=3)]
    assert learner.progress.device == device
    learner.change(1, 1.0)
    assert learner.progress.device == device.replace("3 threads", "1 thread")


def test_a_learner_is_told_of_another_share_of_the_time() -> None:
    learner = told(LearnerSettings(step_seconds=2.0, compute_share=0.5))
    for share in (0.5, 0.25, 0.25, 1.0):
        learner.change(1, share)
    assert learner.sent == [SetPace(step_seconds=2.0, compute_share=share) for share in (0.25, 1.0)]


def test_a_learner_is_told_once_to_rest_and_to_go_on() -> None:
    learner = told()
    for act in (learner.pause, learner.resume, learner.resume, learner.pause, learner.pause):
        act()
    assert learner.sent == [PauseSteps(paused=False), PauseSteps(paused=True)]


@pytest.mark.parametrize(("settings", "seconds"), [
    ({}, 0.5),
    ({"compute_share": 0.25}, 2.0),
    ({"step_seconds": 3.0}, 3.0),
])  # fmt: skip
def test_steps_come_as_far_apart_as_the_owner_wants(settings: dict[str, float], seconds: float) -> None:
    learner = told(LearnerSettings(**settings))  # type: ignore[arg-type]
    assert learner.step_seconds is None
    for step in range(1, STEPS_TIMED_MIN + 1):
        entry = StepEntry(step=step, loss=1.0, tokens=32)
        report = Steps(entries=(entry,), dropped=0, cpu_seconds=0.0, busy_seconds=0.5 * step)
        learner.progress.report(report, float(step))
    assert learner.step_seconds == seconds
