"""A line chart in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return one bar per value; beyond `width` values, each bar is the mean of its share. Values are finite."""
    if not values or width < 1:
        return ""
    means = _shares(values, width)
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def _shares(values: Sequence[float], width: int) -> list[float]:
    bars = min(len(values), width)
    edges = [len(values) * bar // bars for bar in range(bars + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
