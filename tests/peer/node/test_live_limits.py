"""Changing the limits of a running peer: all of its parts respect them, or nothing changes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.cli.arguments import run_config
from peer.machine.limits import MBIT_BYTES, SETTINGS_NAME, Limits, PeerSettings
from peer.node.live_limits import LiveLimits
from peer.node.options import NodeOptions
from peer.node.sharers import OtherSharers, Sharers, Used


class Part:
    """A fake of network, pause loop, driver and learner in one, which records what it is told."""

    used = Used(day="2026-01-01", sent_bytes=5)
    others = OtherSharers()

    def __init__(self) -> None:
        self.respected: list[Limits] = []
        self.given: list[float] = []
        self.of_day: list[float] = []
        self.learns: list[tuple[int, float]] = []
        self.works_on: list[int] = []
        self.config: RunConfig = run_config(None, None)

    @property
    def itself(self) -> Part:
        return self

    engine = core = manifest = answering = strangers = requests = server = work = itself

    def give_of_day(self, bytes_per_day: float) -> None:
        self.of_day.append(bytes_per_day)

    def give_at_most(self, bytes_per_second: float, bytes_per_day: float) -> None:
        self.given.append(bytes_per_second)

    def change(self, threads: int, compute_share: float) -> None:
        self.learns.append((threads, compute_share))

    def use(self, threads: int) -> None:
        self.works_on.append(threads)

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
    # limits given on the command line are not permanent
    assert PeerSettings.load(tmp_path).limits == Limits(upload_mbit=8.0, compute_share=0.5, hours="22:00-07:00")


def test_rounds_take_no_more_cores_than_a_change_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def course() -> None:
        part = Part()
        ours = desk(tmp_path, part)
        for change in ("cpu_cores=2", "upload_mbit=8", "cpu_cores=0"):
            await ours.change([change])
        assert part.works_on == [2, 16]
        assert [threads for threads, _ in part.learns] == [2, 2, 16]

    monkeypatch.setattr("peer.machine.limits.usable_cores", lambda: 16)
    asyncio.run(course())


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
    """A session, that is the owner's own training loop, is left alone."""
    part: Any = Part()
    options = NodeOptions(tmp_path, threads=3, session=session, limits=Limits(compute_share=0.5))
    LiveLimits(options, part, part, part).begin_learner(part)
    assert part.learns == told


def test_peers_that_share_limits_split_them_and_a_change_at_one_reaches_all(tmp_path: Path) -> None:
    """A day's use is added up over all, so the pause loop is told only of the owner's changes, in whole limits."""
    before, whole = Limits(upload_mbit=8.0, cpu_cores=4), Limits(upload_mbit=4.0, cpu_cores=4)
    parts: list[Any] = [Part(), Part()]

    async def course(desks: list[LiveLimits]) -> None:
        assert [one.in_force for one in desks] == [before, before.part(2)]
        await desks[0].exchange()
        assert [one.respected for one in parts] == [[before, before.part(2)], [before]]
        answer = await desks[0].change(["upload_mbit=4"])
        assert (answer.sharers, answer.limits[0].value) == (2, 4.0)
        await desks[1].exchange()
        await desks[0].exchange()  # it finds its own change and no other
        assert parts[0].respected[2:] == parts[1].respected[1:] == [whole, whole.part(2)]
        assert parts[1].given == [0.25 * MBIT_BYTES * 4]
        assert parts[1].others == OtherSharers(living=1, sent_bytes=5)
        await desks[0].change(["upload_mbit=2"])
        await desks[1].exchange()
        await desks[1].change(["upload_mbit=4"])  # before the first has looked, so the settings are unchanged
        await desks[0].exchange()
        assert [one.in_force for one in desks] == [whole.part(2), whole.part(2)]

    with ExitStack() as stack:
        desks = []
        for name, part in zip(("one", "two"), parts, strict=True):
            sharers = stack.enter_context(Sharers(tmp_path, tmp_path / name, ["upload_mbit=8", "cpu_cores=4"]))
            options = NodeOptions(tmp_path, limits=sharers.begin(), sharers=sharers)
            desks.append(LiveLimits(options, part, part, part))
        asyncio.run(course(desks))
    assert PeerSettings.load(tmp_path).limits == Limits(upload_mbit=4.0)


def test_one_that_shares_with_nobody_has_all(tmp_path: Path) -> None:
    part: Any = Part()
    with Sharers(tmp_path, tmp_path / "one", ["upload_mbit=8"]) as sharers:
        ours = LiveLimits(NodeOptions(tmp_path, limits=sharers.begin(), sharers=sharers), part, part, part)
        asyncio.run(ours.exchange())
    assert part.respected == [sharers.whole] == [ours.in_force]
