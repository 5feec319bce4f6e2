"""The one place where the dashboard reads the wall clock."""

from __future__ import annotations

import time


def unix_seconds() -> float:
    """Return the Unix time of this machine's clock, in seconds."""
    return time.time()
