"""Formats numbers for people, short enough for a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

SHOWN_MAX = 100  # seconds, then minutes; more are shown in the next unit
_UNITS = ("", "k", "M", "G", "T", "P")


def count(value: float | None) -> str:
    """Format a number with at most four digits and a decimal unit: `12`, `3.9k`, `480k`; `–` if it is not known."""
    return "–" if value is None else _scaled(value, 1000, "")


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: `1 peer`, `2 peers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(noun: str, which: Sequence[str]) -> str:
    """Format a list with its noun: `fragment 1`, `fragments 1, 4`."""
    return f"{noun if len(which) == 1 else noun + 's'} {', '.join(which)}"


def size(value_bytes: float) -> str:
    """Format bytes with a binary unit: `0 B`, `3.1 MB`."""
    return _scaled(value_bytes, 1024, " ") + "B"


def duration(seconds: float) -> str:
    """Format a duration as `m:ss`, or `h:mm:ss` from an hour on."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rough(seconds: float) -> str:
    """Format an estimated duration in one unit: `8 s`, `12 min`, `3 h`."""
    if seconds < SHOWN_MAX:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 60 * SHOWN_MAX else f"{math.ceil(seconds / 3600)} h"


def bar(share: float) -> str:
    """Draw a share as `███▌░░░░░░`, in twentieths; the bar is full or empty only if the share is 1 or 0."""
    halves = 20 * min(max(share, 0.0), 1.0)
    whole, half = divmod(math.ceil(halves) if halves < 1 else math.floor(halves), 2)
    return ("█" * whole + "▌" * half).ljust(10, "░")


def versions(numbers: Iterable[int]) -> str:
    """Format how many fragments are at each version, newest first: `5×12 3×11`."""
    found = sorted(Counter(numbers).items(), reverse=True)
    return " ".join(f"{fragments}×{version}" if fragments > 1 else str(version) for version, fragments in found)


def loss(nats: float | None, error: float | None = None) -> str:
    """Format a loss in nats per token with its significant digits, and its standard error if it has one."""
    return "–" if nats is None else f"{nats:.3f}" + ("" if error is None else f" ± {error:.3f}")


def warmth(celsius: float | None, watts: float | None) -> str:
    """Format temperature and power as `61 °C, 120 W`, without a value that is not known."""
    known = ((celsius, "°C"), (watts, "W"))
    return ", ".join(f"{value:.0f} {unit}" for value, unit in known if value is not None)


def _scaled(value: float, base: int, space: str) -> str:
    unit = 0
    while abs(value) >= base - 0.5 and unit < len(_UNITS) - 1:
        value /= base
        unit += 1
    return f"{value:.1f}{space}{_UNITS[unit]}" if unit and abs(value) < 9.95 else f"{value:.0f}{space}{_UNITS[unit]}"
