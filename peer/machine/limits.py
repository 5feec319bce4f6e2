"""The limits set by a machine's owner: `[limits]` of the peer's own settings file. No run can change any of them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator

from coordinator.run.toml_file import parse_toml, reading
from coordinator.run.validation_errors import first_error
from dht.errors import UsageError
from dht.wire import Wire
from peer.machine.cores import usable_cores
from peer.machine.hours import Hours

SETTINGS_NAME = "settings.toml"
MBIT_BYTES = 1_000_000 // 8
AT_START = frozenset({"niceness", "gpu_memory_share", "memory_gigabytes"})  # limits that apply when a learner starts
OFF = {  # the meaning of 0 or an empty text, in a word
    **dict.fromkeys(
        ("upload_mbit", "download_mbit", "upload_gigabytes_per_day", "download_gigabytes_per_day"), "unlimited"
    ),
    **dict.fromkeys(("memory_gigabytes", "disk_gigabytes", "written_gigabytes_per_hour"), "unlimited"),
    **dict.fromkeys(("pause_while_used_minutes", "pause_above_celsius"), "never"),
    "cpu_cores": "all",
    "hours": "always",
}
SPLIT = (  # divided among the peers that share these limits; all others apply to each of them
    *("upload_mbit", "download_mbit", "upload_gigabytes_per_day", "download_gigabytes_per_day", "cpu_cores"),
    *("memory_gigabytes", "disk_gigabytes", "written_gigabytes_per_hour"),
)
AMOUNT_MAX = 1e9  # of megabits or gigabytes: as good as no limit, and still finite
MBIT_MIN = 1.0  # at less, a frame cannot pass within its receiver's deadline


class Limits(Wire):
    """Limits and reasons to pause. Zero, or an empty text, is no limit."""

    upload_mbit: float = Field(
        0.0,
        ge=0,
        le=AMOUNT_MAX,
        title="Upload, Mbit per second",
        description="megabits sent per second, at least 1; 0 for no limit",
    )
    download_mbit: float = Field(
        0.0,
        ge=0,
        le=AMOUNT_MAX,
        title="Download, Mbit per second",
        description="megabits received per second, at least 1; 0 for no limit",
    )
    upload_gigabytes_per_day: float = Field(
        0.0,
        ge=0,
        le=AMOUNT_MAX,
        title="Upload, GB a day",
        description="once sent, the peer pauses and answers nobody until midnight; 0 for no limit",
    )
    download_gigabytes_per_day: float = Field(
        0.0,
        ge=0,
        le=AMOUNT_MAX,
        title="Download, GB a day",
        description="once received, the peer pauses until midnight; 0 for none",
    )
    cpu_cores: int = Field(
        0,
        ge=0,
        le=1024,
        title="CPU cores",
        description="most threads of the learner and of a round, whatever `--threads` says",
    )
    niceness: int = Field(
        0, ge=0, le=19, title="Niceness", description="least niceness of the learner; 19 gives way to all else"
    )
    gpu_memory_share: float = Field(
        1.0, gt=0, le=1, title="GPU memory, share", description="most of a GPU's memory that the learner may take"
    )
    compute_share: float = Field(
        1.0,
        gt=0,
        le=1,
        title="Computing, share",
        description="most of the time that the learner computes; else it rests",
    )
    memory_gigabytes: float = Field(
        0.0,
        ge=0,
        le=AMOUNT_MAX,
        title="Memory, GB",
        description="most RAM that the learner and its peer may take; 0 for no limit",
    )
    disk_gigabytes: float = Field(
        0.0, ge=0, le=AMOUNT_MAX, title="Disk, GB", description="most that the data folder may hold; 0 for no limit"
    )
    written_gigabytes_per_hour: float = Field(
        13.6,
        ge=0,
        le=AMOUNT_MAX,
        title="Written, GB an hour",
        description="most written in an hour, on average; 13.6 lets an SSD last five years; 0 for no limit",
    )
    hours: str = Field(
        "", max_length=512, title="Hours", description="when to train: `mon-fri 22:00-07:00, sun 10:00-18:00`"
    )
    pause_on_battery: bool = Field(
        True, title="Pause on battery", description="pause while the machine runs on battery"
    )
    pause_while_used_minutes: float = Field(
        0.0,
        ge=0,
        title="Pause while used, minutes",
        description="pause until nobody has touched the machine for so long; 0 for never",
    )
    pause_for_gpu_programs: bool = Field(
        True, title="Pause for GPU programs", description="pause while another program keeps a GPU busy"
    )
    pause_above_celsius: float = Field(
        0.0,
        ge=0,
        le=150,
        title="Pause above, °C",
        description="pause above this temperature, until 5 below it; 0 for never",
    )

    @field_validator("upload_mbit", "download_mbit")
    @classmethod
    def _fast_enough(cls, mbit: float) -> float:
        if 0 < mbit < MBIT_MIN:
            raise ValueError(f"upload_mbit and download_mbit must be at least {MBIT_MIN:g}, or 0 for no limit")
        return mbit

    @field_validator("hours")
    @classmethod
    def _readable(cls, hours: str) -> str:
        try:
            Hours.parse(hours)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return hours

    @property
    def upload_bytes_per_second(self) -> float:
        """Upload limit in bytes per second; infinity without one."""
        return self.upload_mbit * MBIT_BYTES or float("inf")

    @property
    def download_bytes_per_second(self) -> float:
        """Download limit in bytes per second; infinity without one."""
        return self.download_mbit * MBIT_BYTES or float("inf")

    def threads(self, wanted: int) -> int:
        """Return the number of threads for the learner or a round; `wanted` = 0 means all cores that are ours."""
        found = wanted or usable_cores()
        return min(found, self.cpu_cores) if self.cpu_cores else found

    def part(self, sharers: int) -> Self:
        """Return the limits for each of this many sharers; a core cannot be split."""
        parts = {key: getattr(self, key) / sharers for key in SPLIT}
        return self.model_copy(update={**parts, "cpu_cores": self.cpu_cores and max(1, self.cpu_cores // sharers)})

    def changed(self, changes: Iterable[str]) -> Self:
        """Return these limits with each `KEY=VALUE` applied; raises UsageError."""
        values = self.model_dump() | dict(map(parse_change, changes))
        try:
            return type(self).model_validate(values)
        except ValidationError as error:
            raise UsageError(f"{first_error(error, type(self))}; see docs/how-to/limits.md") from None

    def named(self, changes: Iterable[str]) -> dict[str, Any]:
        """Return the values for the keys of these `KEY=VALUE`."""
        return {key: getattr(self, key) for key, _ in map(parse_change, changes)}


class PeerSettings(Wire):
    """The whole settings file."""

    limits: Limits = Field(default_factory=Limits)

    @classmethod
    def load(cls, data_directory: Path, overrides: Iterable[str] = ()) -> Self:
        """Load `settings.toml` from this folder, if any, with `KEY=VALUE` of `--limit` on top; raises UsageError."""
        path = data_directory / SETTINGS_NAME
        content = _read(path)
        limits = content.setdefault("limits", {})
        try:
            if isinstance(limits, dict):
                limits.update(map(parse_change, overrides))
            return cls.model_validate(content)
        except ValidationError as error:
            raise UsageError(f"{path} or --limit: {first_error(error, cls)}; see docs/how-to/limits.md") from None


def _read(path: Path) -> dict[str, Any]:
    with reading(path):
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return {}
    return parse_toml(text, str(path))


def parse_change(text: str) -> tuple[str, Any]:
    """Parse `upload_mbit=2` into a key and a value; a text needs no quotes. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"a limit is of the form KEY=VALUE, as in upload_mbit=2, and not {text!r}")
    name = "niceness" if key.strip() == "nice" else key.strip()  # named like the option of `muster join`
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # including numbers of thousands of digits, or lists nested too deeply
        return name, value.strip()
