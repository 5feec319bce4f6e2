"""Weights of contributions: plain numbers, computed from the input set alone, so they are the same everywhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import fsum, inf
from statistics import median_low

TRUNCATION = 1.5  # × the median: what one contribution may ever weigh at most (design §6.2 step 6, docs/adr/0039)
BALANCE = 0.75  # of what all others weigh: the most that fewer than a third of a group may; 3/7 of the sum
CREDITED = 16  # × the median: what one contribution may be credited at most (docs/adr/0035)


def is_plausible(tokens: int, steps: int, windows: int, tokens_per_step: int) -> bool:
    """Whether a commitment agrees with itself: one data window per step, and no more tokens than these hold.

    Not whether the steps were made: nothing that a peer signs tells (docs/adr/0035).
    """
    return 0 < steps == windows and 0 < tokens <= steps * tokens_per_step


def contribution_weight(tokens: int, steps: int) -> float:
    """tokens · (tokens / steps): quantity times quality (DiLoCo 2604.21428 §3.2); 0 where nothing was trained."""
    return tokens * (tokens / steps) if steps > 0 else 0.0


def weights_of(counters: Sequence[tuple[int, int]], members: int, merged: Collection[int]) -> tuple[float, ...]:
    """Weight per (tokens, steps), in order, where those at the places `merged`, of a group's members, are summed.

    As many of the heaviest as may be hostile say nothing about what the others weigh. None is above 1.5 × the (lower)
    median of the rest, nor so heavy that these, if they all were, would tip the balance (docs/adr/0046).
    """
    plain = [contribution_weight(tokens, steps) for tokens, steps in counters]
    limit = limit_of([plain[place] for place in merged], members)
    return tuple(min(weight, limit) for weight in plain)


def limit_of(merged: Sequence[float], members: int) -> float:
    """The most that one may weigh where these, of a group's members, are summed; see `weights_of`."""
    counted = sorted(weight for weight in merged if weight > 0)
    if not counted:
        return 0.0
    hostile = min(most_hostile(members), len(counted) - 1)
    rest = counted[: len(counted) - hostile]
    return min(TRUNCATION * median_low(rest), _balanced(rest, hostile))


def _balanced(rest: Sequence[float], hostile: int) -> float:
    """What so many besides may weigh each, to have together at most `BALANCE` × what the rest has, cut to the same.

    `rest` is in order. If they are too many for that even as the lightest, they weigh as much as that one.
    """
    for heavier in range(len(rest) if hostile else 0):
        lighter = rest[: len(rest) - heavier]
        surplus = hostile - BALANCE * heavier
        if surplus > 0 and (limit := BALANCE * fsum(lighter) / surplus) >= lighter[-1]:
            return limit
    return rest[0] if hostile else inf


def most_hostile(members: int) -> int:
    """How many of these may be hostile: fewer than a third."""
    return max(members - 1, 0) // 3


def outweighed(its: float, others: Collection[float], hostile: int) -> bool:
    """Whether so many, who weighs `its` and the heaviest of the others, hold half of what all weigh together."""
    heaviest = sorted(others, reverse=True)[: max(hostile - 1, 0)]
    return hostile > 0 and 2 * fsum((its, *heaviest)) >= fsum((its, *others))


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
