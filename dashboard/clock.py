"""The one place of the dashboard that reads the wall clock: how long ago something was seen."""

from __future__ import annotations

import time


def unix_seconds() -> float:
    """Seconds since 1970, as this machine believes."""
    return time.time()
