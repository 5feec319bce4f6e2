"""Weights of contributions: plain numbers, computed from the input set alone, so they are the same everywhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import fsum, inf
from statistics import median_low

TRUNCATION = 1.5  # × the median: the most that one contribution may ever weigh (design §6.2 step 6, docs/adr/0039)
BALANCE = 0.75  # × the weight of all others: the most that fewer than a third of a group may weigh; 3/7 of the sum
CREDITED = 16  # × the median: the most that one contribution may be credited (docs/adr/0035)


def is_plausible(tokens: int, steps: int, windows: int, tokens_per_step: int) -> bool:
    """Whether a commitment agrees with itself: one data window per step, and no more tokens than these hold.

    It does not tell whether the steps were made: nothing that a peer signs does (docs/adr/0035).
    """
    return 0 < steps == windows and 0 < tokens <= steps * tokens_per_step


def contribution_weight(tokens: int, steps: int) -> float:
    """Return tokens · (tokens / steps): quantity times quality (DiLoCo 2604.21428 §3.2); 0 without any step."""
    return tokens * (tokens / steps) if steps > 0 else 0.0


def weights_of(counters: Sequence[tuple[int, int]], members: int, merged: Collection[int]) -> tuple[float, ...]:
    """Return the weight of each (tokens, steps), in order, for a sum of those at the places `merged`.

    The limit on all weights ignores the heaviest of them, as many as may be hostile among `members`. No weight is above
    1.5 × the (lower) median of the rest, nor so heavy that these ignored ones, all at the limit, would tip the balance
    (docs/adr/0046).
    """
    plain = [contribution_weight(tokens, steps) for tokens, steps in counters]
    limit = limit_of([plain[place] for place in merged], members)
    return tuple(min(weight, limit) for weight in plain)


def limit_of(merged: Sequence[float], members: int) -> float:
    """Return the most that one weight may be in a sum of these, in a group of `members`; see `weights_of`."""
    counted = sorted(weight for weight in merged if weight > 0)
    if not counted:
        return 0.0
    hostile = min(most_hostile(members), len(counted) - 1)
    rest = counted[: len(counted) - hostile]
    return min(TRUNCATION * median_low(rest), _balanced(rest, hostile))


def _balanced(rest: Sequence[float], hostile: int) -> float:
    """Return the limit at which `hostile` more weights are at most `BALANCE` × the rest, cut to the same limit.

    `rest` is in ascending order. If even its lightest weight is too much as a limit, that weight is returned.
    """
    for heavier in range(len(rest) if hostile else 0):
        lighter = rest[: len(rest) - heavier]
        surplus = hostile - BALANCE * heavier
        if surplus > 0 and (limit := BALANCE * fsum(lighter) / surplus) >= lighter[-1]:
            return limit
    return rest[0] if hostile else inf


def most_hostile(members: int) -> int:
    """Return how many of so many members may be hostile: fewer than a third."""
    return max(members - 1, 0) // 3


def outweighed(its: float, others: Collection[float], hostile: int) -> bool:
    """Whether `hostile` members, one of weight `its` and the heaviest others, hold half of the total weight."""
    heaviest = sorted(others, reverse=True)[: max(hostile - 1, 0)]
    return hostile > 0 and 2 * fsum((its, *heaviest)) >= fsum((its, *others))


def truncated(values: Sequence[float]) -> tuple[float, ...]:
    """Cut every value to 1.5 × the (lower) median of those above zero, so that no claim outweighs the rest."""
    positive = [value for value in values if value > 0]
    limit = TRUNCATION * median_low(positive) if positive else 0.0
    return tuple(min(value, limit) for value in values)


def creditable(tokens: Sequence[int]) -> tuple[int, ...]:
    """Cut each member's tokens in one version to 16 × the (lower) median of those above zero, for its credit.

    So fewer than half, whatever they claim, get at most 16 times what an honest member of the version has done.
    """
    positive = [one for one in tokens if one > 0]
    limit = CREDITED * median_low(positive) if positive else 0
    return tuple(min(one, limit) for one in tokens)
