"""Units that owners and organisers count in, expressed in the units of the code."""

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS
GIGABYTE_BYTES = 1_000_000_000
