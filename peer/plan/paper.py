"""The paper's printed numbers (DiLoCo 2604.21428), for comparison with ours; copied from its tables, not computed."""

from __future__ import annotations

from typing import NamedTuple

CHIPS = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
UTILISATIONS = (0.50, 0.75, 0.90, 0.95, 0.99)
EXTRA_LEARNERS = (0.0, 0.25, 0.50, 1.0, 3.0)
MODEL_PARAMS = 5e9  # of Table 13
STRAGGLER_SLOWDOWN = 1.18  # of Table 5
STRAGGLER_GOODPUT = {"K = M": 84, "K = 1": 100, "K = 1 with grace": 100}


class Percent(NamedTuple):
    """One row of Table 1, in percent, a column for each of `CHIPS`."""

    goodput: tuple[int, ...]
    uptime: tuple[int, ...]


# Table 1, a and b: method and learners. Every chip is interrupted once a year, speeds are constant.
AVAILABILITY = {
    ("rigid", 1): Percent((72, 57, 38, 27, 18), (72, 57, 38, 27, 18)),
    ("elastic", 1): Percent((88, 80, 69, 58, 40), (88, 81, 69, 59, 42)),
    ("decoupled", 2): Percent((94, 88, 80, 70, 54), (100, 97, 96, 90, 80)),
    ("decoupled", 4): Percent((96, 93, 89, 82, 73), (100, 100, 99, 99, 99)),
    ("decoupled", 8): Percent((98, 96, 94, 88, 80), (100, 100, 100, 100, 99)),
    ("decoupled", 16): Percent((99, 98, 96, 93, 86), (100, 100, 100, 100, 99)),
}


class Setting(NamedTuple):
    """One row of Table 13."""

    step_seconds: int
    sites: int
    method: str
    bits: int


# Table 13: Gbit/s as printed (the digits decide what rounding may hide), a column for each of `UTILISATIONS`.
BANDWIDTH = {
    Setting(1, 2, "dp", 16): ("49", "81", "104", "113", "195"),
    Setting(1, 2, "decoupled", 16): ("0.58", "1.2", "1.7", "1.9", "2.2"),
    Setting(1, 2, "decoupled", 4): ("0.15", "0.29", "0.43", "0.49", "0.53"),
    Setting(5, 2, "dp", 16): ("9.5", "16", "21", "23", "49"),
    Setting(5, 2, "decoupled", 16): ("0.12", "0.23", "0.34", "0.39", "0.43"),
    Setting(5, 2, "decoupled", 4): ("0.03", "0.06", "0.08", "0.10", "0.11"),
    Setting(1, 8, "dp", 16): ("85", "140", "183", "198", "391"),
    Setting(1, 8, "decoupled", 16): ("1.0", "2.0", "3.0", "3.3", "3.8"),
    Setting(1, 8, "decoupled", 4): ("0.26", "0.51", "0.75", "0.84", "0.94"),
    Setting(5, 8, "dp", 16): ("17", "28", "37", "40", "49"),
    Setting(5, 8, "decoupled", 16): ("0.21", "0.40", "0.59", "0.68", "0.75"),
    Setting(5, 8, "decoupled", 4): ("0.05", "0.10", "0.15", "0.17", "0.19"),
}

# Table 4: training time at equal FLOPs, relative to no extra learners, a column for each of `EXTRA_LEARNERS`.
SCAVENGING = {
    "dp": (1.00, 1.07, 1.09, 1.02, 0.80),
    "decoupled": (1.00, 0.90, 0.83, 0.75, 0.62),
}
