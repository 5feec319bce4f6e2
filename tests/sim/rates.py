"""`python -m tests.sim.rates`: versions that peers make with some hostile ones among them, and without.

Virtual time. Swarms (`--swarm`): six peers with one fragment; four or seven at the pace of examples/tiny.toml; or ten
of which nobody can call five or six of the honest ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.adversary.collusion import TRICKS
from coordinator.run.manifest import PaceSpec
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.simulation import World
from peer.attacks.protocol import mischief_named
from tests.sim.worlds import PACE, STEPS_PER_SECOND, machine, run_to_version, swarm

CALM = "nobody"


@dataclass(frozen=True, slots=True)
class Setting:
    """A swarm whose last `hostile` peers are hostile and know each other, and the length of its run.

    It runs for `intervals` of one fragment's versions. All peers can be called except `homes` of the honest ones, which
    cannot reach each other either.
    """

    peers: int
    hostile: int
    pace: PaceSpec
    steps_per_second: float
    intervals: int
    homes: int = 0

    @property
    def interval_seconds(self) -> float:
        return self.pace.steps_per_version / self.steps_per_second


SIX = Setting(6, 1, PACE, STEPS_PER_SECOND, 24)
FOUR = Setting(4, 1, PaceSpec(), 4.0, 10)  # eight fragments, so a version is due every 0.75 s
SEVEN = replace(FOUR, peers=7, hostile=2)
FIVE_HOMES = Setting(10, 3, PACE, STEPS_PER_SECOND, 30, homes=5)
FOUR_HOMES = replace(FIVE_HOMES, peers=7, hostile=1, homes=4)
SIX_HOMES = replace(FIVE_HOMES, homes=6)
SETTINGS = {"six": SIX, "four": FOUR, "seven": SEVEN, "five-homes": FIVE_HOMES, "six-homes": SIX_HOMES}


def versions_made(attack: str, seed: int, setting: Setting = SIX) -> int:
    """Return the versions of an honest peer's chains in these intervals, while the last peers run `attack`."""
    world = swarm(setting.peers, setting.pace, rates=[setting.steps_per_second] * setting.peers, seed=seed)
    _close_homes(world, setting)
    run_to_version(world, 2)
    culprits = world.peers[setting.peers - setting.hostile :] if attack != CALM else []
    band = frozenset(culprit.me for culprit in culprits)
    assert isinstance(world.watcher, Watcher)
    world.watcher.hostile |= band
    for culprit in culprits:
        mischief = mischief_named(attack, culprit.signer, [peer.me for peer in world.peers])
        culprit.mischief = replace(mischief, accomplices=band - {culprit.me})
    fragments = range(setting.pace.fragments)
    before = sum(machine(world.peers[0], fragment).chain.version for fragment in fragments)
    world.run(setting.intervals * setting.interval_seconds)
    return sum(machine(world.peers[0], fragment).chain.version for fragment in fragments) - before


def _close_homes(world: World, setting: Setting) -> None:
    honest = setting.peers - setting.hostile
    homes = world.peers[honest - setting.homes : honest]
    world.network.blocked = {(one.me, other.me) for one in homes for other in homes if one is not other}
    for peer in homes:
        peer.crash()
        peer.dialable = False
        peer.start()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each attack."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.rates", description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--swarm", choices=SETTINGS, default="six")
    parser.add_argument("--attacks", nargs="*", default=[*TRICKS])
    chosen = parser.parse_args(arguments)
    calm = 0
    for name in [CALM, *chosen.attacks]:
        made = [versions_made(name, seed, SETTINGS[chosen.swarm]) for seed in range(chosen.seeds)]
        calm = calm or sum(made)
        sys.stdout.write(f"{name:20} {sum(made) / calm:6.0%}  {made}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
