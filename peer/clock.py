"""The one place that reads the wall clock. It dates records and joins; the protocol itself runs on monotonic time."""

from __future__ import annotations

import time


def unix_seconds() -> float:
    """Seconds since 1970, as this machine believes."""
    return time.time()
