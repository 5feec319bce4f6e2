"""How likely a group drawn at random is captured by hostile peers (design §9): exact, no simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capture:
    """Probabilities for one group: a third of its voters can stop certificates, half can steer the merge."""

    third: float
    half: float


def capture(members: int, hostile_share: float, peers: int | None = None) -> Capture:
    """For a group of `members` out of `peers` of which a share is hostile; out of ever so many if `peers` is None."""
    return Capture(
        at_least(members, -(-members // 3), hostile_share, peers),
        at_least(members, -(-members // 2), hostile_share, peers),
    )


def at_least(members: int, hostile: int, share: float, peers: int | None = None) -> float:
    """Probability of at least so many hostile members: hypergeometric, or binomial without `peers`."""
    if peers is None:
        chances = [math.comb(members, k) * share**k * (1 - share) ** (members - k) for k in range(hostile, members + 1)]
        return math.fsum(chances)
    bad = round(share * peers)
    low, high = max(hostile, members - (peers - bad)), min(members, bad)
    ways = sum(math.comb(bad, k) * math.comb(peers - bad, members - k) for k in range(low, high + 1))
    return ways / math.comb(peers, members)
