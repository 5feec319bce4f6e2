"""Weights of contributions: plain numbers, computed from the input set alone, so they are the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

TRUNCATION = 1.5  # × the median: what one contribution may weigh at most (design §6.2 step 6)


def is_plausible(tokens: int, steps: int, windows: int, tokens_per_step: int) -> bool:
    """Whether a commitment can be true: one data window per step, and no more tokens than these hold."""
    return 0 < steps == windows and 0 < tokens <= steps * tokens_per_step


def contribution_weight(tokens: int, steps: int) -> float:
    """tokens · (tokens / steps): quantity times quality (DiLoCo 2604.21428 §3.2); 0 where nothing was trained."""
    return tokens * (tokens / steps) if steps > 0 else 0.0


def weights_of(counters: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    """Weight per (tokens, steps), in order; none above 1.5 × the median."""
    return truncated([contribution_weight(tokens, steps) for tokens, steps in counters])


def truncated(values: Sequence[float]) -> tuple[float, ...]:
    """Every value, but none above 1.5 × the (lower) median of those above zero, so that no claim outweighs the rest."""
    positive = [value for value in values if value > 0]
    limit = TRUNCATION * median_low(positive) if positive else 0.0
    return tuple(min(value, limit) for value in values)
