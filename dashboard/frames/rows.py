"""What all frames share."""

from __future__ import annotations

from datetime import UTC, datetime

Row = dict[str, object]
"""One row of a table or a chart, by column."""


def milliseconds(unix_seconds: float) -> int:
    """As charts take times."""
    return int(1000 * unix_seconds)


def moment(unix_seconds: float) -> datetime | None:
    """As tables take times; None for a time that nobody knows."""
    return datetime.fromtimestamp(unix_seconds, UTC) if 0 < unix_seconds < 1e11 else None
