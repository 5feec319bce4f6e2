"""Units that people count in."""

from __future__ import annotations

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS
GIGABYTE_BYTES = 1_000_000_000
