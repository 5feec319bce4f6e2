"""`python -m tests.sim.crowding`: versions that eight peers make while a hundred silent keys ask into every group.

One line for each way to bound strangers: versions after 60 intervals of virtual time, one figure per seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from coordinator.manifest import TrustSpec
from tests.sim.test_limits import FARM, HONEST, OPEN, SYBILS, SybilFarm
from tests.sim.worlds import INTERVAL_SECONDS, swarm, version

INTERVALS = 60
WAYS: Mapping[str, tuple[TrustSpec, int, tuple[bytes, ...]]] = {
    "nobody asks": (TrustSpec(), 0, ()),
    "newcomers 0.15": (TrustSpec(newcomers_share=0.15), SYBILS, ()),
    "newcomers 0.25, one network 0.25": (TrustSpec(newcomers_share=0.25, network_share=0.25), SYBILS, (FARM,)),
    "newcomers 0.25, probation 3": (TrustSpec(newcomers_share=0.25, probation_rounds=3), SYBILS, ()),
}


def versions(trust: TrustSpec, keys: int, networks: tuple[bytes, ...], seed: int) -> int:
    """What the first peer holds in the end."""
    world = swarm(HONEST, OPEN, trust=trust, seed=seed)
    SybilFarm(world, networks, keys)
    world.run(INTERVALS * INTERVAL_SECONDS)
    return version(world.peers[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    for name, way in WAYS.items():
        print(f"{name}: {' '.join(str(versions(*way, seed)) for seed in range(options.seeds))}", flush=True)


if __name__ == "__main__":
    main()
