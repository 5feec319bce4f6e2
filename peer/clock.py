"""The one place that reads the wall clock. It dates records and joins, and knows an owner's days and hours.

The protocol itself runs on monotonic time.
"""

from __future__ import annotations

import time


def unix_seconds() -> float:
    """Seconds since 1970, as this machine believes."""
    return time.time()


def local_week_minute() -> int:
    """Minutes since Monday 0:00, local time."""
    now = time.localtime()
    return (now.tm_wday * 24 + now.tm_hour) * 60 + now.tm_min


def local_day() -> str:
    """Today, local time, as `2026-01-31`."""
    return time.strftime("%Y-%m-%d")
