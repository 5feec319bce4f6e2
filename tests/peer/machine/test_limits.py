"""An owner's limits as written in a file, on the command line, and as hours of the week."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import UsageError
from peer.machine.hours import DAY_MINUTES, DAYS, WEEK_MINUTES, Hours
from peer.machine.limits import SETTINGS_NAME, Limits, PeerSettings

MONDAY, TUESDAY, FRIDAY, SATURDAY, SUNDAY = (day * DAY_MINUTES for day in (0, 1, 4, 5, 6))


def at(day: int, hour: int, minute: int = 0) -> int:
    return day + hour * 60 + minute


def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / SETTINGS_NAME
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=f"^{path} is no text file"):
        PeerSettings.load(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match=f"^{path} is a folder; name a file$"):
        PeerSettings.load(tmp_path)


def test_without_hours_every_minute_is_allowed() -> None:
    assert Hours.parse("") == Hours.parse(" , ")
    assert all(Hours.parse("").contain(minute) for minute in range(WEEK_MINUTES))


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-07:00", [at(MONDAY, 22), at(SUNDAY, 23, 59), at(MONDAY, 6, 59)], [at(MONDAY, 7), at(MONDAY, 21, 59)]),
        ("mon-fri 22:00-07:00", [at(FRIDAY, 23), at(SATURDAY, 6)], [at(SATURDAY, 23), at(MONDAY, 5)]),
        ("sun 10:00-18:00", [at(SUNDAY, 10), at(SUNDAY, 17, 59)], [at(SUNDAY, 18), at(SATURDAY, 12)]),
        ("fri-mon 0:00-24:00", [at(FRIDAY, 0), at(MONDAY, 23, 59)], [at(TUESDAY, 0)]),
        ("Sun 20:00-2:00, tue 1:00-2:00", [at(MONDAY, 1), at(TUESDAY, 1, 30)], [at(MONDAY, 2), at(TUESDAY, 2)]),
    ],
)
def test_hours_mean_what_people_mean(text: str, inside: list[int], outside: list[int]) -> None:
    hours = Hours.parse(text)
    assert [minute for minute in inside if not hours.contain(minute)] == []
    assert [minute for minute in outside if hours.contain(minute)] == []


@given(st.integers(0, 6), st.integers(0, DAY_MINUTES - 1), st.integers(1, DAY_MINUTES))
def test_every_stretch_is_as_long_as_it_says(day: int, begin: int, length: int) -> None:
    end = (begin + length) % DAY_MINUTES
    if end == begin:
        return
    text = f"{DAYS[day]} {begin // 60}:{begin % 60:02}-{end // 60}:{end % 60:02}"
    minutes = Hours.parse(text).open_minutes
    assert minutes == {(day * DAY_MINUTES + begin + n) % WEEK_MINUTES for n in range(length)}


@pytest.mark.parametrize("text", ["always", "mon", "moo 1:00-2:00", "1:00-1:00", "25:00-26:00", "1:60-2:00", "1-2"])
def test_hours_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Hours.parse(text)


def test_a_file_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_NAME).write_text('[limits]\nupload_mbit = 8\nhours = "22:00-07:00"\n')
    assert PeerSettings.load(tmp_path).limits == Limits(upload_mbit=8.0, hours="22:00-07:00")
    limits = PeerSettings.load(tmp_path, ["upload_mbit=2", "hours=sun 1:00-2:00", "pause_on_battery=false"]).limits
    assert limits == Limits(upload_mbit=2.0, hours="sun 1:00-2:00", pause_on_battery=False)
    assert limits.upload_bytes_per_second == 250_000


def test_without_a_file_nothing_is_limited(tmp_path: Path) -> None:
    limits = PeerSettings.load(tmp_path / "nowhere").limits
    assert limits.upload_bytes_per_second == limits.download_bytes_per_second == float("inf")
    assert limits.threads(64) == 64
    assert Limits(cpu_cores=2).threads(64) == 2


@pytest.mark.parametrize(
    ("content", "overrides", "problem"),
    [
        ("[limits]\nupload = 3", [], "upload is not a known key"),
        ("[limits]\nupload_mbit = 0.5", [], "at least 1"),
        ("[limits]\nhours = 'never'", [], "'never' are no hours"),
        ("limits = 3", ["upload_mbit=2"], "limits"),
        ("[limits", [], "is not valid TOML"),
        ("", ["upload_mbit"], "KEY=VALUE"),
        ("", ["upload_mbit=fast"], "upload_mbit"),
        ("", ["gpu_memory_share=1.5"], "gpu_memory_share"),
    ],
)
def test_wrong_limits_are_told_in_a_sentence(tmp_path: Path, content: str, overrides: list[str], problem: str) -> None:
    (tmp_path / SETTINGS_NAME).write_text(content)
    with pytest.raises(UsageError, match=problem) as caught:
        PeerSettings.load(tmp_path, overrides)
    assert "\n" not in str(caught.value)
