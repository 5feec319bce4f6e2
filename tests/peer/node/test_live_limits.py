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
from peer.node.live_limits import LiveLimits
from peer.node.options import NodeOptions


class Part:
    """Network, pause loop, driver and learner in one: it writes down what it is told."""

    def __init__(self) -> None:
        self.respected: list[Limits] = []
        self.given: list[float] = []
        self.of_day: list[float] = []
        self.learns: list[tuple[int, float]] = []
        self.config: RunConfig = run_config(None, None)

    @property
    def itself(self) -> Part:
        return self

    engine = core = manifest = answering = strangers = requests = server = itself

    def give_of_day(self, bytes_per_day: float) -> None:
        self.of_day.append(bytes_per_day)

    def give_at_most(self, bytes_per_second: float, bytes_per_day: float) -> None:
        self.given.append(bytes_per_second)

    def change(self, threads: int, compute_share: float) -> None:
        self.learns.append((threads, compute_share))

    def respect(self, limits: Limits) -> None:
        self.respected.append(limits)


def desk(folder: Path, part: Any) -> LiveLimits:
    made = LiveLimits(NodeOptions(folder, limits=Limits(cpu_cores=4)), part, part, part)
    made.learner = part
    return made


def test_a_change_is_respected_at_once_and_kept_for_the_next_start(tmp_path: Path) -> None:
    async def course() -> None:
        part = Part()
        ours = desk(tmp_path, part)
        answer = await ours.change(["upload_mbit=8", "compute_share=0.5", "hours=22:00-07:00"])
        assert answer == ours.view()
        assert {one.value for one in answer.limits} >= {8.0, "22:00-07:00", 4}
        wanted = Limits(cpu_cores=4, upload_mbit=8.0, compute_share=0.5, hours="22:00-07:00")
        assert part.respected == 2 * [wanted]
        assert part.learns == [(wanted.threads(0), 0.5)]
        assert part.given == [0.5e6]

    asyncio.run(course())
    # what the command line said is not for ever
    assert PeerSettings.load(tmp_path).limits == Limits(upload_mbit=8.0, compute_share=0.5, hours="22:00-07:00")


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


@pytest.mark.parametrize(("session", "told"), [(None, [(3, 0.5)]), (object(), [])])
def test_a_learner_that_is_ready_respects_what_was_changed_meanwhile(
    tmp_path: Path, session: Any, told: list[tuple[int, float]]
) -> None:
    """But a loop of its owner's own is left alone."""
    part: Any = Part()
    options = NodeOptions(tmp_path, threads=3, session=session, limits=Limits(compute_share=0.5))
    LiveLimits(options, part, part, part).begin_learner(part)
    assert part.learns == told
