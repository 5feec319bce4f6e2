"""Weights of contributions: plain numbers, computed from the input set alone, so they are the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

TRUNCATION = 1.5  # × the median: what one contribution may weigh at most (design §6.2 step 6, docs/adr/0039)
CREDITED = 16  # × the median: what one contribution may be credited at most (docs/adr/0035)


def is_plausible(tokens: int, steps: int, windows: int, tokens_per_step: int) -> bool:
    """Whether a commitment agrees with itself: one data window per step, and no more tokens than these hold.

    Not whether the steps were made: nothing that a peer signs tells (docs/adr/0035).
    """
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


def creditable(tokens: Sequence[int]) -> tuple[int, ...]:
    """What of the tokens in one version is credited to each: none above 16 × the (lower) median of those above zero.

    So fewer than half, claiming whatever they like, get at most 16 times what an honest member of the version has done.
    """
    positive = [one for one in tokens if one > 0]
    limit = CREDITED * median_low(positive) if positive else 0
    return tuple(min(one, limit) for one in tokens)
