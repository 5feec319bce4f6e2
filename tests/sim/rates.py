"""`python -m tests.sim.rates`: versions that six peers make while one of them is hostile, beside those without it.

Virtual time; a swarm of one fragment that makes a version every three seconds when nobody disturbs it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from coordinator.virtual.invariants import Watcher
from peer.attacks.protocol import PROTOCOL_ATTACKS, mischief_named
from tests.sim.worlds import INTERVAL_SECONDS, run_to_version, swarm, version

PEERS = 6
INTERVALS = 24  # for which it is hostile: every peer leads some of the versions
CALM = "nobody"


def versions_made(attack: str, seed: int, peers: int = PEERS, intervals: int = INTERVALS) -> int:
    """Versions of an honest peer's chain in this many intervals, while the last peer behaves as `attack` says."""
    world = swarm(peers, seed=seed)
    run_to_version(world, 2)
    if attack != CALM:
        culprit = world.peers[-1]
        culprit.mischief = mischief_named(attack, culprit.signer, [peer.me for peer in world.peers])
        assert isinstance(world.watcher, Watcher)
        world.watcher.hostile.add(culprit.me)
    before = version(world.peers[0])
    world.run(intervals * INTERVAL_SECONDS)
    return version(world.peers[0]) - before


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each attack."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.rates", description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--attacks", nargs="*", default=[*PROTOCOL_ATTACKS])
    chosen = parser.parse_args(arguments)
    calm = 0
    for name in [CALM, *chosen.attacks]:
        made = [versions_made(name, seed) for seed in range(chosen.seeds)]
        calm = calm or sum(made)
        sys.stdout.write(f"{name:20} {sum(made) / calm:6.0%}  {made}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
