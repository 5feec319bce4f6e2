"""Sensors of a Linux machine: power, temperature, other programs on the GPU, and the user's last activity.

Temperature is always read, because people want to see it. All else is read only if the owner's limits need it. A value
that the machine does not report is None. Everything here blocks for a moment: call it in a thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Protocol

from peer.machine.clock import unix_seconds
from peer.machine.limits import Limits
from peer.machine.pause_policy import Conditions

COMMAND_SECONDS_MAX = 3.0
SLOW_LOOKS = 10  # commands run at every tenth look
DISK_LOOKS = 120
GPU_BUSY_PERCENT = 20  # of its processors; a desktop's own drawing stays below
LEARNER_PROGRAMS = (b"peer.learner.process", b"peer.attacks.learner")  # as in the command lines of all peers' learners
SESSION_PROGRAM = b"peer.session.process"  # the peer of a user's own loop, whose process id is its last argument
CPU_MONITORS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})  # drivers in /sys/class/hwmon
CPU_ZONES = ("x86_pkg_temp", "cpu", "soc")  # prefixes of the types in /sys/class/thermal

TERMINAL_SECONDS = 8.0  # to which the kernel rounds the time of an input
ONLINE = ("1", "2")  # the latter of a USB charger with a voltage that it was asked for

Command = Callable[[list[str]], str | None]


class Sensors(Protocol):
    """The port for reading a machine's state."""

    def read(self) -> Conditions: ...


@dataclass(frozen=True, slots=True)
class Places:
    """The system's folders that we read."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")


class CommandRunner:
    """Runs commands that may hang for ever: in a driver that does not answer, not even a kill ends them."""

    def __init__(self) -> None:
        self._stuck: subprocess.Popen[str] | None = None

    def __call__(self, command: list[str]) -> str | None:
        """Return the command's output; None if it is missing, fails or is slow, or an earlier one has not ended."""
        if shutil.which(command[0]) is None or (self._stuck is not None and self._stuck.poll() is None):
            return None
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return None
        try:
            output, _ = process.communicate(timeout=COMMAND_SECONDS_MAX)
        except (subprocess.TimeoutExpired, UnicodeDecodeError):
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
            self._stuck = process
            return None
        return output if process.returncode == 0 else None


class MachineSensors:
    """The sensors of the machine that we run on."""

    def __init__(
        self, limits: Limits, data_directory: Path, places: Places | None = None, command: Command | None = None
    ) -> None:
        self._limits = limits
        self._data_directory = data_directory
        self._places = places or Places()
        self._command = command or CommandRunner()
        self._looks = 0
        self._slow = Conditions()  # the last results of commands
        self._disk_bytes: int | None = None

    def read(self) -> Conditions:
        """Read all sensors once."""
        limits = self._limits
        if self._looks % SLOW_LOOKS == 0:
            self._slow = self._read_slowly()
        if limits.disk_gigabytes and self._looks % DISK_LOOKS == 0:
            self._disk_bytes = folder_bytes(self._data_directory)
        self._looks += 1
        cpu = cpu_celsius(self._places.sys) if limits.pause_above_celsius else None
        return Conditions(
            on_battery=on_battery(self._places.sys) if limits.pause_on_battery else None,
            untouched_seconds=self._untouched() if limits.pause_while_used_minutes else None,
            gpu_program=self._slow.gpu_program,
            celsius=_hottest((cpu, self._slow.celsius)),
            watts=self._slow.watts,
            disk_bytes=self._disk_bytes,
        )

    def _read_slowly(self) -> Conditions:
        limits = self._limits
        gpu, watts = gpu_warmth(self._command)
        cpu = None if limits.pause_above_celsius else cpu_celsius(self._places.sys)  # else every look reads it
        return Conditions(
            untouched_seconds=seat_idle_seconds(self._command) if limits.pause_while_used_minutes else None,
            gpu_program=gpu_program(self._command, self._places.proc) if limits.pause_for_gpu_programs else None,
            celsius=_hottest((cpu, gpu)),
            watts=watts,
        )

    def _untouched(self) -> float | None:
        known = [terminal_idle_seconds(self._places.dev), self._slow.untouched_seconds]
        return min((seconds for seconds in known if seconds is not None), default=None)


def on_battery(sys: Path) -> bool | None:
    """Whether the machine's own battery discharges and no charger is connected; None without a battery.

    Supplies of scope "Device" power something else: a mouse, or what is plugged into a USB port.
    """
    supplies = [
        {name: _text(folder / name) for name in ("type", "online", "status", "scope")}
        for folder in _folders(sys / "class/power_supply")
    ]
    own = [one for one in supplies if one["scope"] != "Device"]
    batteries = [one for one in own if one["type"] == "Battery"]
    if not batteries:
        return None
    plugged = any(one["type"] != "Battery" and one["online"] in ONLINE for one in own)
    return not plugged and any(one["status"] == "Discharging" for one in batteries)


def cpu_celsius(sys: Path) -> float | None:
    """Return the highest temperature of the processor's sensors."""
    files = [
        file
        for folder in _folders(sys / "class/hwmon")
        if _text(folder / "name") in CPU_MONITORS
        for file in folder.glob("temp*_input")
    ]
    zones = _folders(sys / "class/thermal")
    files += [folder / "temp" for folder in zones if _text(folder / "type").lower().startswith(CPU_ZONES)]
    found = [int(text) / 1000 for file in files if (text := _text(file)).lstrip("-").isdecimal()]
    return max(found, default=None)


def gpu_warmth(command: Command) -> tuple[float | None, float | None]:
    """Return the hottest NVIDIA GPU in °C, and the power of all of them in W; None for values not reported."""
    output = command(["nvidia-smi", "--query-gpu=temperature.gpu,power.draw", "--format=csv,noheader,nounits"])
    rows = [line.split(",") for line in (output or "").splitlines()]
    columns = [[float(text) for text in column if _is_number(text)] for column in zip(*rows, strict=False)]
    celsius, watts = columns if len(columns) == 2 else ([], [])
    return max(celsius, default=None), sum(watts) if watts else None


def gpu_room_bytes(command: Command, share: float) -> int:
    """Return the free memory of the NVIDIA GPU with the most, within this share of its total; 0 without a GPU.

    Uses the driver's tool, because a process that asks by CUDA takes hundreds of megabytes of each GPU while it lives.
    """
    output = command(["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"])
    rows = [line.split(",") for line in (output or "").splitlines()]
    known = [row for row in rows if len(row) == 2 and all(map(_is_number, row))]
    return max((int(min(float(free), share * float(total)) * 2**20) for free, total in known), default=0)


def gpu_program(command: Command, proc: Path) -> bool | None:
    """Whether a program other than a learner or session keeps an NVIDIA GPU busy: a game, a render, other training."""
    output = command(["nvidia-smi", "pmon", "-c", "1", "-s", "u"])
    if output is None:
        return None
    rows = [line.split() for line in output.splitlines() if line and not line.startswith("#")]
    busy = {row[1] for row in rows if len(row) > 3 and row[3].isdecimal() and int(row[3]) >= GPU_BUSY_PERCENT}
    others = {pid for pid in busy if not _is_learner(proc / pid)}
    return bool(others and others - _sessions(proc))


def terminal_idle_seconds(dev: Path) -> float | None:
    """Return the time since the last input to a terminal of this machine; the kernel rounds it to eight seconds.

    An input in the future was before the clock was set back, hours ago perhaps; it says nothing.
    """
    now, idle_seconds = unix_seconds(), []
    for terminal in [*dev.glob("pts/[0-9]*"), *dev.glob("tty[0-9]*")]:
        with suppress(OSError):
            idle_seconds.append(now - terminal.stat().st_atime)
    return min((max(0.0, seconds) for seconds in idle_seconds if seconds > -TERMINAL_SECONDS), default=None)


def seat_idle_seconds(command: Command) -> float | None:
    """Return the time since the desktop became idle, by systemd-logind; 0 while it is not idle.

    In monotonic time, because the clock may be set.
    """
    output = command(["loginctl", "show-seat", "seat0", "--property=IdleHint", "--property=IdleSinceHintMonotonic"])
    if output is None:
        return None
    said = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    if said.get("IdleHint") == "no":
        return 0.0
    since = said.get("IdleSinceHintMonotonic", "")
    return max(0.0, monotonic() - int(since) / 1e6) if since.isdecimal() else None


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):  # skips folders that have vanished
        for name in names:
            with suppress(OSError):  # a checkpoint that was replaced meanwhile
                total += Path(place, name).lstat().st_size
    return total


def _hottest(known: Iterable[float | None]) -> float | None:
    return max((celsius for celsius in known if celsius is not None), default=None)


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdecimal()


def _is_learner(process: Path) -> bool:
    command = _command(process)
    return any(program in command for program in LEARNER_PROGRAMS)


def _sessions(proc: Path) -> set[str]:
    """Return the ids of the processes that train in a session, in their users' own loops."""
    commands = [_command(process).split(b"\0") for process in _folders(proc) if process.name.isdecimal()]
    return {words[-2].decode(errors="replace") for words in commands if SESSION_PROGRAM in words}


def _command(process: Path) -> bytes:
    """Return a process' command line, each word with a zero after it; empty if it cannot be read."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def _folders(parent: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(parent.iterdir())


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
