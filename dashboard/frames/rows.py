"""Rows and times, shared by all frames."""

from __future__ import annotations

from datetime import UTC, datetime

Row = dict[str, object]
"""One row of a table or a chart, by column."""


def milliseconds(unix_seconds: float) -> int:
    """Convert a time to milliseconds, as charts take it."""
    return int(1000 * unix_seconds)


def moment(unix_seconds: float) -> datetime | None:
    """Convert a time to a datetime, as tables take it; None for an unknown time."""
    return datetime.fromtimestamp(unix_seconds, UTC) if 0 < unix_seconds < 1e11 else None
