"""The probability that hostile peers capture a group drawn at random (design §9): exact, without simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinator.cells.assignment import CELL_PEERS, WARDS_PER_CELL_MAX
from coordinator.core.tickets import NEW_SEATS
from coordinator.run.manifest import PEERS_PER_GROUP_MAX

HEADS = PEERS_PER_GROUP_MAX - NEW_SEATS


@dataclass(frozen=True, slots=True)
class Capture:
    """Probabilities for one group: a third of its voters can stop certificates, half can steer the merge."""

    third: float
    half: float


@dataclass(frozen=True, slots=True)
class CellCapture:
    """The probabilities that hostile peers steer the result, with cells below the group.

    A cell is steered if at least half of its inputs are hostile. A head is if it is hostile or its cell is steered. The
    group is if at least half of its heads are. Votes stay the group's own (`Capture.third`).
    """

    cell: float
    head: float
    group: float


def tiers(peers: float) -> int:
    """Return the average tiers of cells below the heads of this many peers."""
    return 2 if peers > HEADS * (1 + WARDS_PER_CELL_MAX) else 1


def capture_cells(peers: int, hostile_share: float) -> CellCapture:
    """Return the probabilities for a swarm of `peers`, assigned evenly; each cell is drawn independently."""
    wards = max(1, math.ceil(peers / HEADS) - 1)
    lowest = min(CELL_PEERS if tiers(peers) > 1 else 1 + wards, PEERS_PER_GROUP_MAX)
    cell = capture(lowest, hostile_share).half
    steered = hostile_share + (1 - hostile_share) * cell
    if tiers(peers) > 1:
        leaders = min(math.ceil(wards / CELL_PEERS), WARDS_PER_CELL_MAX)
        steered = hostile_share + (1 - hostile_share) * capture(1 + leaders, steered).half
    return CellCapture(cell, steered, capture(HEADS, steered).half)


def capture(members: int, hostile_share: float, peers: int | None = None) -> Capture:
    """Return the probabilities for `members` drawn from `peers` with a hostile share; from infinitely many if None."""
    return Capture(
        at_least(members, -(-members // 3), hostile_share, peers),
        at_least(members, -(-members // 2), hostile_share, peers),
    )


def at_least(members: int, hostile: int, share: float, peers: int | None = None) -> float:
    """Return the probability of at least `hostile` hostile members: hypergeometric, or binomial without `peers`."""
    if peers is None:
        chances = [math.comb(members, k) * share**k * (1 - share) ** (members - k) for k in range(hostile, members + 1)]
        return math.fsum(chances)
    bad = round(share * peers)
    low, high = max(hostile, members - (peers - bad)), min(members, bad)
    ways = sum(math.comb(bad, k) * math.comb(peers - bad, members - k) for k in range(low, high + 1))
    return ways / math.comb(peers, members)
