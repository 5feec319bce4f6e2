"""`python -m tests.sim.balance`: the hostile share of a merge, and when it turns the merge around.

The figures of docs/adr/0046; the hostile peers are fewer than a third of a group. They claim eight times their work,
and their leaders leave honest peers out or keep them away. One table has their largest share of a partition's weight in
the simulator. The other has the direction of the merge if they have the largest possible weight and send the honest
mean with its sign turned.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import sqrt

import torch

from coordinator.adversary.collusion import mischief_of
from coordinator.adversary.lies import CLAIMED
from coordinator.chain.weights import TRUNCATION, weights_of
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.simulation import World
from peer.numerics.robust.rules import robust_rda
from tests.sim.worlds import INTERVAL_SECONDS, machine, statement_of, swarm

ELEMENTS, DRAWS = 20_000, 5
HIDING = {  # leaders that make no version: which peers they hide their rosters from
    "keep_busy": lambda victim: not victim,  # victims still wait there while the others form the next group
    "hide": lambda victim: victim,  # the others take victims for silent
}
TRICKS = ("pass_over", "shut_out", *HIDING)  # the first two leave victims out of the commitments or the roster
STEPS = (1, 1)  # tokens and steps of an honest contribution: their scale does not matter


@dataclass(frozen=True, slots=True)
class Band:
    """A group of `peers` with `hostile` hostile ones; as many honest ones can be missing from a merge."""

    peers: int
    hostile: int


BANDS = (Band(10, 3), Band(7, 2), Band(16, 5))
MERGES = ((Band(10, 3), 7), (Band(8, 2), 5), (Band(16, 5), 11), (Band(10, 3), 10), (Band(8, 2), 8))  # and merged inputs
AGREEMENTS = (0.8, 0.5, 0.31)  # cosine of two honest contributions


def claiming(band: Band, trick: str, seed: int) -> World:
    """Return a swarm whose last peers, the band, claim more work and use `trick` as leaders."""
    world = swarm(band.peers, seed=seed)
    honest, hostile = world.peers[: -band.hostile], world.peers[-band.hostile :]
    ids, victims = frozenset(peer.me for peer in hostile), frozenset(one.me for one in honest[: band.hostile])
    hides = HIDING.get(trick)
    for peer in hostile:
        names = ["never_bundle" if hides else trick, "claim_more"]
        peer.mischief = replace(mischief_of(peer.signer, names, victims), accomplices=ids - {peer.me})
    if hides:
        world.network.filter = lambda by, to, message: (
            not (by in ids and to not in ids and statement_of(message, "roster") and hides(to in victims))
        )
    assert isinstance(world.watcher, Watcher)
    world.watcher.hostile |= ids
    return world


def turned(band: Band, merged: int, agreement: float, weight: float) -> float:
    """Return the merge's mean cosine with the honest mean; honest peers weigh 1, hostile ones `weight`."""
    honest, cosines = merged - band.hostile, []
    for draw in range(DRAWS):
        random = torch.Generator().manual_seed(draw)
        common, own = torch.randn(1, ELEMENTS, generator=random), torch.randn(honest, ELEMENTS, generator=random)
        vectors = sqrt(agreement) * common + sqrt(1 - agreement) * own
        mean = vectors.mean(dim=0)
        weights = [1.0] * honest + [weight] * band.hostile
        merge = robust_rda([*vectors, *[-mean] * band.hostile], weights).vector
        cosines.append(float(torch.cosine_similarity(merge, mean, dim=0)))
    return sum(cosines) / DRAWS


def most_of(band: Band, merged: int) -> float:
    """Return the largest weight of each hostile peer, in units of an honest one's weight."""
    claims = [(STEPS[0] * CLAIMED, STEPS[1])] * band.hostile
    return weights_of([*claims, *[STEPS] * (merged - band.hostile)], band.peers, range(merged))[0]


def _shares(seeds: int, intervals: int) -> None:
    for band, trick, seed in product(BANDS, TRICKS, range(seeds)):
        world = claiming(band, trick, seed)
        world.run(intervals * INTERVAL_SECONDS)
        assert isinstance(world.watcher, Watcher)
        certificates = machine(world.peers[0]).chain.certificates
        full = [world.watcher.largest_share(one) for one in certificates if not one.outcome.minor]
        minor = [world.watcher.largest_share(one) for one in certificates if one.outcome.minor]
        of_minor = f"; {len(minor)} minor, {max(minor):.1%}" if minor else ""
        line = f"{band.hostile} of {band.peers}  {trick:10} seed {seed}  {len(full):3} full, {max(full):.1%}{of_minor}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _turns() -> None:
    for band, merged in MERGES:
        most = most_of(band, merged)
        now = "  ".join(f"{turned(band, merged, agreement, most):5.2f}" for agreement in AGREEMENTS)
        before = "  ".join(f"{turned(band, merged, agreement, TRUNCATION):5.2f}" for agreement in AGREEMENTS)
        line = f"{band.hostile}, {merged} of {band.peers}: weight {most:.2f}, {now}; {TRUNCATION}: {before}"
        sys.stdout.write(line + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.balance", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--intervals", type=int, default=42)
    chosen = parser.parse_args(arguments)
    sys.stdout.write(f"cosine with the honest mean, of honest that agree by {AGREEMENTS}\n")
    _turns()
    _shares(chosen.seeds, chosen.intervals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
