"""The one place that reads the wall clock. It dates records and joins, and tells an owner's days and hours.

The protocol itself runs on monotonic time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dht.errors import LocalError
from dht.units import DAY_SECONDS

Clock = Callable[[], float]
SKEW_FILE = "clock-skew"  # in the data folder of a peer in a chaos run
SKEW_CHARACTERS_MAX = 32
SKEW_SECONDS_MAX = 10 * 366 * DAY_SECONDS


def unix_seconds() -> float:
    """Return seconds since 1970 by this machine's clock."""
    return time.time()


def skewed(path: Path) -> Clock:
    """Return a clock that is ahead by the seconds in this file, or behind if negative; exact without the file.

    For trials, because Linux has no wall clock per process. An invalid number counts as 0.
    """

    def read() -> float:
        skew_seconds = 0.0
        with suppress(OSError, ValueError), path.open(encoding="ascii") as file:
            skew_seconds = float(file.read(SKEW_CHARACTERS_MAX))
        return unix_seconds() + (skew_seconds if abs(skew_seconds) <= SKEW_SECONDS_MAX else 0.0)

    return read


def write_skew(path: Path, skew_seconds: float) -> None:
    """Set the error of `skewed` from now on; raises LocalError."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.write_text(str(skew_seconds), encoding="ascii")
        temporary.replace(path)
    except OSError as error:
        raise LocalError(f"{path} cannot be written: {error.strerror}") from None


def local_week_minute() -> int:
    """Return minutes since Monday 0:00, local time."""
    time.tzset()  # a machine may be told another time zone while we run
    now = time.localtime()
    return (now.tm_wday * 24 + now.tm_hour) * 60 + now.tm_min


def local_day() -> str:
    """Return today's date, local time, as `2026-01-31`."""
    time.tzset()
    return time.strftime("%Y-%m-%d")
