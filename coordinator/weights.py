"""Weights of contributions: plain numbers, computed from the input set alone, so they are the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence


def contribution_weight(tokens: int, steps: int) -> float:
    """tokens · (tokens / steps): quantity times quality (DiLoCo 2604.21428 §3.2); 0 where nothing was trained."""
    return tokens * (tokens / steps) if steps > 0 else 0.0


def weights_of(counters: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    """Weight per (tokens, steps), in order."""
    return tuple(contribution_weight(tokens, steps) for tokens, steps in counters)
