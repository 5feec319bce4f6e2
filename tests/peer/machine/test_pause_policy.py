"""When and why a peer pauses, and when it continues, with a clock that the test sets."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.units import GIGABYTE_BYTES
from peer.machine.clock import local_week_minute
from peer.machine.daily_traffic import TRAFFIC_NAME, DailyTraffic
from peer.machine.hours import WEEK_MINUTES
from peer.machine.limits import Limits
from peer.machine.pause_policy import CALM_SECONDS, Conditions, Pause, PausePolicy, Today
from peer.machine.throttle import Throttle
from peer.net.transport import Traffic
from peer.node import pause_loop
from peer.node.options import NodeOptions
from peer.node.pause_loop import PauseLoop
from peer.node.sharers import OtherSharers

FINE = Conditions(on_battery=False, untouched_seconds=1e6, gpu_program=False, celsius=40.0, disk_bytes=0)
STRICT = Limits(
    upload_gigabytes_per_day=1.0,
    download_gigabytes_per_day=2.0,
    disk_gigabytes=1.0,
    hours="0:00-12:00",
    pause_while_used_minutes=5.0,
    pause_above_celsius=80.0,
)


def reason(limits: Limits, seen: Conditions = FINE, today: Today | None = None) -> str:
    pause = PausePolicy(limits).judge(seen, today or Today(), 0.0)
    return "" if pause is None else pause.reason


@pytest.mark.parametrize(
    ("seen", "today", "why"),
    [
        (replace(FINE, on_battery=True), Today(), "on battery"),
        (replace(FINE, untouched_seconds=299.0), Today(), "its owner uses it"),
        (replace(FINE, gpu_program=True), Today(), "another program uses the GPU"),
        (replace(FINE, celsius=80.5), Today(), "hotter than 80 °C"),
        (replace(FINE, disk_bytes=GIGABYTE_BYTES + 1), Today(), "its disk limit is reached"),
        (FINE, Today(week_minute=12 * 60), "outside its hours"),
        (FINE, Today(sent_bytes=GIGABYTE_BYTES), "upload limit of the day reached"),
        (FINE, Today(received_bytes=2 * GIGABYTE_BYTES), "download limit of the day reached"),
    ],
)
def test_every_wish_is_a_reason_of_its_own(seen: Conditions, today: Today, why: str) -> None:
    assert reason(STRICT) == ""
    assert reason(STRICT, seen, today) == why
    indifferent = Limits(pause_on_battery=False, pause_for_gpu_programs=False)
    assert reason(indifferent, seen, today) == ""


def test_an_unknown_condition_is_no_reason() -> None:
    assert reason(STRICT, Conditions()) == ""


def test_only_what_costs_the_network_keeps_a_peer_off_it() -> None:
    judge = PausePolicy(STRICT).judge
    assert judge(FINE, Today(sent_bytes=GIGABYTE_BYTES), 0.0) == Pause("upload limit of the day reached", silent=True)
    assert judge(replace(FINE, on_battery=True), Today(), 0.0) == Pause("on battery")


def test_a_reason_ends_only_after_it_has_been_gone_for_a_while() -> None:
    policy = PausePolicy(Limits())
    battery = replace(FINE, on_battery=True)
    assert policy.judge(FINE, Today(), 0.0) is None
    assert policy.judge(battery, Today(), 1.0) is not None
    assert policy.judge(FINE, Today(), CALM_SECONDS) is not None
    assert policy.judge(battery, Today(), 40.0) is not None
    assert policy.judge(FINE, Today(), 39.0 + CALM_SECONDS) is not None
    assert policy.judge(FINE, Today(), 40.0 + CALM_SECONDS) is None
    assert policy.judge(FINE, Today(), 1000.0) is None


def test_a_hot_machine_cools_down_before_it_starts_again() -> None:
    policy = PausePolicy(Limits(pause_above_celsius=80.0))
    course = [(0.0, 79.0), (1.0, 81.0), (100.0, 78.0), (200.0, 76.0), (201.0, 74.0), (240.0, 74.0), (300.0, 79.0)]
    paused = [policy.judge(replace(FINE, celsius=celsius), Today(), at) is not None for at, celsius in course]
    assert paused == [False, True, True, True, True, False, False]


def test_hours_and_days_end_to_the_minute() -> None:
    policy = PausePolicy(STRICT)
    assert policy.judge(FINE, Today(week_minute=12 * 60), 0.0) is not None
    assert policy.judge(FINE, Today(week_minute=24 * 60), 0.1) is None
    assert policy.judge(FINE, Today(sent_bytes=2 * GIGABYTE_BYTES), 0.2) is not None
    assert policy.judge(FINE, Today(sent_bytes=0), 0.3) is None


def test_hours_follow_a_machine_into_another_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    try:
        for zone in ("XXX0", "YYY-9"):
            monkeypatch.setenv("TZ", zone)
            found.append(local_week_minute())
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (found[1] - found[0]) % WEEK_MINUTES in (9 * 60, 9 * 60 + 1)


@given(st.lists(st.tuples(st.floats(0.1, 20), st.booleans()), min_size=2, max_size=50))
def test_a_peer_never_flaps_faster_than_the_calm(course: list[tuple[float, bool]]) -> None:
    policy, now, last_seen, was_paused = PausePolicy(Limits()), 0.0, -1e9, False
    for rest_seconds, on_battery in course:
        now += rest_seconds
        paused = policy.judge(replace(FINE, on_battery=on_battery), Today(), now) is not None
        assert paused >= on_battery
        if was_paused and not paused:
            assert now - last_seen >= CALM_SECONDS
        last_seen = now if on_battery else last_seen
        was_paused = paused


def test_a_day_adds_up_over_restarts_and_begins_anew_at_midnight(tmp_path: Path) -> None:
    first = DailyTraffic(tmp_path, "2026-01-01")
    first.note("2026-01-01", 100, 10)
    assert first.note("2026-01-01", 150, 30).sent_bytes == 150
    first.save()
    second = DailyTraffic(tmp_path, "2026-01-01")
    day = second.note("2026-01-01", 5, 7)
    assert (day.sent_bytes, day.received_bytes) == (155, 37)
    assert second.note("2026-01-02", 9, 7, 3.0).sent_bytes == 4
    assert second.note("2026-01-02", 9, 7, 2.5).trained_seconds == 5.5
    (tmp_path / TRAFFIC_NAME).write_text("{")
    assert DailyTraffic(tmp_path, "2026-01-03").today.sent_bytes == 0


class Stand:
    """A fake machine and transport that report what the test wants."""

    peer_id = None

    def __init__(self) -> None:
        self.seen = FINE
        self.traffic = Traffic()
        self.throttle = Throttle()
        self.verdicts: list[Pause | None] = []
        self.trains = False

    def read(self) -> Conditions:
        return self.seen

    def sensors(self, limits: Limits) -> Stand:
        return self

    def loop(self, folder: Path, limits: Limits) -> PauseLoop:
        told, trains = self.verdicts.append, lambda: self.trains
        return PauseLoop(NodeOptions(folder, limits=limits), self.sensors, self, self.throttle, told, trains)  # type: ignore[arg-type]


def test_a_day_goes_on_with_its_sums_when_the_clock_was_behind(tmp_path: Path) -> None:
    """A machine without a clock of its own boots with an earlier date; the day's limit holds all the same."""
    before = DailyTraffic(tmp_path, "2026-01-02")
    before.note("2026-01-02", 500, 50, 5.0)
    before.save()
    booted = DailyTraffic(tmp_path, "2026-01-01")
    assert booted.note("2026-01-01", 1, 1).sent_bytes == 1
    booted.save()
    later = DailyTraffic(tmp_path, "2026-01-02")
    day = later.note("2026-01-02", 100, 10)
    assert (day.sent_bytes, day.received_bytes, day.trained_seconds) == (600, 60, 5.0)
    for number in range(3, 10):
        later.note(f"2026-01-0{number}", 100, 10)
    assert later.note("2026-01-02", 100, 10).sent_bytes == 0


def test_the_loop_tells_every_change_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_loop, "local_day", lambda: "2026-01-01")
    stand = Stand()

    async def course() -> None:
        loop = stand.loop(tmp_path, Limits(upload_gigabytes_per_day=1.0))
        await loop.look()
        stand.seen = replace(FINE, on_battery=True)
        await loop.look()
        await loop.look()
        assert stand.throttle.strangers.admits("anybody", 0.0)
        stand.traffic = Traffic(bytes_sent=GIGABYTE_BYTES)
        await loop.look()
        assert stand.throttle.upload.shut
        assert stand.throttle.download.shut
        assert not stand.throttle.strangers.admits("anybody", 0.0)  # who asks has no answer either
        monkeypatch.setattr(pause_loop, "local_day", lambda: "2026-01-02")
        await loop.look()
        assert not stand.throttle.upload.shut
        assert stand.throttle.strangers.admits("anybody", 0.0)

    asyncio.run(course())
    reasons = [pause.reason if pause else "" for pause in stand.verdicts]
    assert reasons == ["on battery", "upload limit of the day reached", "on battery"]


def test_the_use_of_others_that_share_the_limits_counts_too(tmp_path: Path) -> None:
    stand, gigabyte = Stand(), GIGABYTE_BYTES
    stand.seen = replace(FINE, disk_bytes=gigabyte)

    async def course() -> None:
        loop = stand.loop(tmp_path, Limits(upload_gigabytes_per_day=2, download_gigabytes_per_day=2, disk_gigabytes=2))
        stand.traffic = Traffic(bytes_sent=gigabyte, bytes_received=gigabyte)
        half = {"sent_bytes": gigabyte // 2, "received_bytes": gigabyte // 2, "disk_bytes": gigabyte // 2}
        for more in ({}, {"sent_bytes": gigabyte}, {"received_bytes": gigabyte}, {"disk_bytes": gigabyte + 1}, {}):
            loop.others = OtherSharers(1, **(half | more))
            await loop.look()
        assert loop.day.sent_bytes == 3 * gigabyte // 2  # as the limits of the day are judged
        assert (loop.used.sent_bytes, loop.used.disk_bytes) == (gigabyte, gigabyte)

    asyncio.run(course())
    reasons = [pause.reason if pause else "" for pause in stand.verdicts]
    day = "limit of the day reached"
    assert reasons == [f"upload {day}", f"download {day}", "its disk limit is reached", ""]


def test_limits_that_change_are_respected_from_the_next_look_on(tmp_path: Path) -> None:
    stand = Stand()
    stand.seen = replace(FINE, on_battery=True, celsius=70.0)

    async def course() -> None:
        loop = stand.loop(tmp_path, Limits())
        await loop.look()
        loop.respect(Limits(pause_on_battery=False))
        await loop.look()
        loop.respect(Limits(pause_on_battery=False, pause_above_celsius=60.0))
        await loop.look()

    asyncio.run(course())
    reasons = [pause.reason if pause else "" for pause in stand.verdicts]
    assert reasons == ["on battery", "", "hotter than 60 °C"]


def test_the_day_says_how_long_it_trained_and_when_it_may_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause_loop, "local_week_minute", lambda: 21 * 60)
    stand = Stand()

    async def course() -> None:
        loop = stand.loop(tmp_path, Limits(hours="22:00-07:00"))
        await loop.look()
        await loop.look()
        assert loop.day.trained_seconds == 0
        stand.trains = True
        await loop.look()
        assert loop.day.trained_seconds > 0
        assert loop.day.opens_in_minutes == 60
        loop.respect(Limits())
        await loop.look()
        assert loop.day.opens_in_minutes is None

    asyncio.run(course())


def test_sent_bytes_are_written_down_when_the_loop_ends(tmp_path: Path) -> None:
    stand = Stand()
    stand.traffic = Traffic(bytes_sent=77)

    async def course() -> None:
        running = asyncio.create_task(stand.loop(tmp_path, Limits()).run())
        while not running.done() and not stand.verdicts and not (tmp_path / TRAFFIC_NAME).exists():
            await asyncio.sleep(0)
            if asyncio.get_running_loop().time() and stand.seen is FINE:
                stand.seen = replace(FINE, on_battery=True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(course())
    assert '"sent_bytes":77' in (tmp_path / TRAFFIC_NAME).read_text()
