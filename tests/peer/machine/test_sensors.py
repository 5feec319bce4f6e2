"""A machine's sensors, read from a tree like Linux's own and from commands' output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from peer.machine import sensors
from peer.machine.limits import Limits
from peer.machine.pause_policy import Conditions
from peer.machine.sensors import (
    CommandRunner,
    MachineSensors,
    Places,
    cpu_celsius,
    folder_bytes,
    gpu_program,
    gpu_room_bytes,
    gpu_warmth,
    on_battery,
    seat_idle_seconds,
    terminal_idle_seconds,
)

PMON = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0       1234     G      {desktop}      1      -      -      -      -    Xorg
    0       4321     C      {other}     30      -      -      -      -    python
"""


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def supply(sys: Path, name: str, **files: str) -> None:
    write(sys / "class/power_supply" / name, **files)


@pytest.mark.parametrize(
    ("battery", "mains", "expected"),
    [("Discharging", "0", True), ("Charging", "1", False), ("Full", "1", False), ("Discharging", "1", False)],
)
def test_a_laptop_is_on_battery_when_nothing_is_plugged_in(
    tmp_path: Path, battery: str, mains: str, expected: bool
) -> None:
    supply(tmp_path, "AC", type="Mains", online=mains)
    supply(tmp_path, "BAT0", type="Battery", status=battery)
    assert on_battery(tmp_path) is expected


def test_a_desktop_with_a_wireless_mouse_has_no_battery(tmp_path: Path) -> None:
    assert on_battery(tmp_path) is None
    supply(tmp_path, "hidpp_battery_0", type="Battery", status="Discharging", scope="Device")
    assert on_battery(tmp_path) is None


def test_a_laptop_that_powers_a_device_is_on_battery(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", scope="System")
    supply(tmp_path, "ucsi-source-psy-1", type="USB", online="1", scope="Device")
    assert on_battery(tmp_path) is True


def test_a_weak_charger_with_a_voltage_of_its_choice_is_plugged_in(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    supply(tmp_path, "ucsi-source-psy-1", type="USB", online="2", scope="System")
    assert on_battery(tmp_path) is False


def test_a_laptop_that_shows_no_mains_is_believed_its_battery(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    assert on_battery(tmp_path) is True


def test_the_hottest_processor_sensor_counts_and_no_other(tmp_path: Path) -> None:
    assert cpu_celsius(tmp_path) is None
    write(tmp_path / "class/hwmon/hwmon0", name="nvme", temp1_input="91000")
    write(tmp_path / "class/hwmon/hwmon1", name="k10temp", temp1_input="61500", temp2_input="58000")
    write(tmp_path / "class/thermal/thermal_zone0", type="acpitz", temp="99000")
    assert cpu_celsius(tmp_path) == 61.5
    write(tmp_path / "class/thermal/thermal_zone1", type="x86_pkg_temp", temp="72000")
    assert cpu_celsius(tmp_path) == 72.0


@pytest.mark.parametrize(
    ("desktop", "other", "expected"), [("3", "95", True), ("-", "-", False), ("3", "4", False), ("60", "-", True)]
)
def test_a_busy_program_on_the_gpu_is_seen(tmp_path: Path, desktop: str, other: str, expected: bool) -> None:
    assert gpu_program(lambda _: PMON.format(desktop=desktop, other=other), tmp_path) is expected


def test_a_learner_on_the_gpu_is_one_of_us(tmp_path: Path) -> None:
    write(tmp_path, **{"4321__cmdline": "python\0-m\0peer.learner.process\0"})
    assert gpu_program(lambda _: PMON.format(desktop="1", other="99"), tmp_path) is False


def test_a_session_on_the_gpu_is_one_of_us(tmp_path: Path) -> None:
    """Its loop is the user's own program; its peer names that process."""
    write(tmp_path, **{"4321__cmdline": "python\0train.py\0", "1234__cmdline": "game\0", "self__cmdline": "python\0"})
    assert gpu_program(lambda _: PMON.format(desktop="1", other="99"), tmp_path) is True
    (tmp_path / "5000").mkdir()
    (tmp_path / "5000/cmdline").write_bytes(b"python\0-m\0peer.session.process\x007\x008\x004321\0")
    assert gpu_program(lambda _: PMON.format(desktop="1", other="99"), tmp_path) is False
    assert gpu_program(lambda _: PMON.format(desktop="60", other="99"), tmp_path) is True


def test_without_the_tools_nothing_is_known(tmp_path: Path) -> None:
    assert gpu_program(lambda _: None, tmp_path) is None
    assert gpu_warmth(lambda _: None) == (None, None)
    assert seat_idle_seconds(lambda _: None) is None
    run = CommandRunner()
    assert run(["no-such-command-here"]) is None
    assert run(["false"]) is None
    assert run(["echo", "here"]) == "here\n"


def test_a_command_that_not_even_a_kill_ends_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Undying(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

        def kill(self) -> None:
            pass

    monkeypatch.setattr(sensors.subprocess, "Popen", Undying)  # type: ignore[attr-defined]
    monkeypatch.setattr(sensors, "COMMAND_SECONDS_MAX", 0.05)
    run = CommandRunner()
    assert run(["sleep", "60"]) is None
    assert run(["echo", "here"]) is None
    (stuck,) = started
    stuck.terminate()
    stuck.wait()
    assert run(["echo", "here"]) == "here\n"


def test_gpus_say_how_warm_they_are_and_what_they_draw() -> None:
    assert gpu_warmth(lambda _: "41, 35.20\n77, 310.80\n") == (77.0, 346.0)
    assert gpu_warmth(lambda _: "41, [N/A]\n") == (41.0, None)
    assert gpu_warmth(lambda _: "No devices were found\n") == (None, None)


def test_the_gpu_with_most_room_says_how_much() -> None:
    told = "2000, 24000\n20000, 24000\n"
    assert gpu_room_bytes(lambda _: told, 1.0) == 20000 << 20
    assert gpu_room_bytes(lambda _: told, 0.5) == 12000 << 20
    assert gpu_room_bytes(lambda _: None, 1.0) == 0
    assert gpu_room_bytes(lambda _: "No devices were found\n[N/A], [N/A]\n", 1.0) == 0


def test_a_desktop_that_says_to_be_idle_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "monotonic", lambda: 1000.0)
    assert seat_idle_seconds(lambda _: "IdleHint=yes\nIdleSinceHintMonotonic=400000000\n") == 600.0
    assert seat_idle_seconds(lambda _: "IdleHint=no\nIdleSinceHintMonotonic=0\n") == 0.0


def test_the_newest_input_of_any_terminal_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "unix_seconds", lambda: 1000.0)
    assert terminal_idle_seconds(tmp_path) is None
    write(tmp_path, pts__0="", pts__1="", tty1="", pts__ptmx="")
    for name, read_at in (("pts/0", 100), ("pts/1", 940), ("tty1", 200), ("pts/ptmx", 999)):
        os.utime(tmp_path / name, (read_at, 0))
    assert terminal_idle_seconds(tmp_path) == 60.0


def test_a_machine_whose_clock_was_set_back_is_not_in_use_until_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a machine that starts with local time in a clock that Linux takes for UTC."""
    monkeypatch.setattr(sensors, "unix_seconds", lambda: 1000.0)
    write(tmp_path, pts__0="", tty1="")
    os.utime(tmp_path / "tty1", (8200, 0))
    os.utime(tmp_path / "pts/0", (1003, 0))
    assert terminal_idle_seconds(tmp_path) == 0.0
    os.utime(tmp_path / "pts/0", (400, 0))
    assert terminal_idle_seconds(tmp_path) == 600.0
    os.utime(tmp_path / "pts/0", (8200, 0))
    assert terminal_idle_seconds(tmp_path) is None

    def desktop(words: list[str]) -> str:
        """Answer as loginctl: idle since 60 s before, and by the earlier clock two hours ahead."""
        known = {"IdleHint": "yes", "IdleSinceHint": "8140000000", "IdleSinceHintMonotonic": "5000000"}
        asked = (word.removeprefix("--property=") for word in words if word.startswith("--property="))
        return "".join(f"{one}={known[one]}\n" for one in asked)

    monkeypatch.setattr(sensors, "monotonic", lambda: 65.0, raising=False)
    assert seat_idle_seconds(desktop) == 60.0


def test_a_folder_is_as_large_as_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_bytes(bytes(1000))
    (tmp_path / "two").write_bytes(bytes(24))
    assert 1024 <= folder_bytes(tmp_path) < 1024 + 64 * 1024  # and what the file system takes for the folder


def test_only_what_the_limits_need_is_asked(tmp_path: Path) -> None:
    asked: list[str] = []

    def command(words: list[str]) -> str | None:
        asked.append(words[1])
        return None

    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    nothing = Limits(pause_on_battery=False, pause_for_gpu_programs=False)
    places = Places(sys=tmp_path, dev=tmp_path)
    assert MachineSensors(nothing, tmp_path, places, command).read() == Conditions()
    assert asked == ["--query-gpu=temperature.gpu,power.draw"]
    asked.clear()
    everything = Limits(pause_above_celsius=80.0, pause_while_used_minutes=5.0, disk_gigabytes=1.0)
    machine = MachineSensors(everything, tmp_path, places, command)
    seen = [machine.read() for _ in range(10)]
    assert len(asked) == 3  # commands are not run at every look
    assert seen[0].on_battery is True
    assert (seen[9].disk_bytes or 0) > 0
