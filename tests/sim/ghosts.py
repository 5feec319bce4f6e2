"""`python -m tests.sim.ghosts`: the effect of ghosts, keys that only publish presence and claim to train.

Three figures for each number of ghosts, one column per seed: versions of eight peers in 40 intervals of virtual time
if the ghosts are there from the start and claim to be very slow; versions in 24 intervals if they come later; and the
largest share of the active set that three hostile leaders of eleven, who leave honest peers out, get in 90 intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass

from coordinator.adversary import lies
from coordinator.adversary.mischief import Mischief
from coordinator.core.events import PresenceSeen
from coordinator.run.manifest import TrustSpec
from coordinator.simulator.keys import virtual_peer_id
from coordinator.simulator.simulation import EVERYBODY_AT_ONCE, World
from coordinator.wire.messages import Roster
from dht.identity import PeerId
from dht.wire import Wire
from tests.coordinator.rigs import presence
from tests.sim.worlds import INTERVAL_SECONDS, PACE, STEPS_PER_SECOND, machine, run_to_version, swarm, version

HONEST, HOSTILE = 8, 3
OPEN = PACE.model_copy(update={"min_group": 4})
CRAWLING = 1e-6  # steps per second
ATTACK_INTERVALS = 90


class Ghosts:
    """Keys that only publish presence."""

    def __init__(self, world: World, count: int, steps_per_second: float = STEPS_PER_SECOND) -> None:
        self.world, self.steps_per_second, self.beat = world, steps_per_second, 0
        self.keys = [virtual_peer_id(5000 + number, world.seed) for number in range(count)]
        self.appear()

    def appear(self) -> None:
        """Show their presence to all peers, again and again before they count as gone."""
        self.beat += 1
        shown = presence(rate=self.steps_per_second, beat=self.beat)
        for peer in self.world.peers:
            for key in self.keys:
                peer.handle(PresenceSeen(key, shown))
        self.world.clock.after(self.world.pace.presence_seconds, self.appear)


@dataclass(frozen=True, slots=True)
class LeavingOut(Mischief):
    """A leader that leaves out as many honest peers as the others accept, but no accomplices."""

    def says(self, body: Wire) -> Wire:
        if not isinstance(body, Roster):
            return body
        band = {self.signer.peer_id, *self.accomplices}
        honest = [PeerId(join.sender) for join in body.joins if join.sender not in band]
        return lies.leaving_out(body, frozenset(honest[: (len(body.joins) - 1) // 3]))


def versions_from_the_start(ghosts: int, seed: int = 0, intervals: int = 40) -> int:
    """Return the versions that eight peers make if the ghosts are there when they begin."""
    world = swarm(HONEST, OPEN, seed=seed)
    Ghosts(world, ghosts, CRAWLING)
    world.run(intervals * INTERVAL_SECONDS)
    return version(world.peers[0])


def versions_later(ghosts: int, seed: int = 0, intervals: int = 24) -> int:
    """Return the versions that they make if the ghosts come after some versions."""
    world = swarm(HONEST, OPEN, seed=seed)
    run_to_version(world, 4)
    Ghosts(world, ghosts)
    before = version(world.peers[0])
    world.run(intervals * INTERVAL_SECONDS)
    return version(world.peers[0]) - before


def share_of(keys: Collection[PeerId], world: World) -> float:
    """Return the share of these keys in an honest peer's active set."""
    active = machine(world.peers[0]).chain.active_set()
    return len(active.intersection(keys)) / len(active)


def largest_share(
    ghosts: int, seed: int = 0, trust: TrustSpec = EVERYBODY_AT_ONCE, intervals: int = ATTACK_INTERVALS
) -> float:
    """Return the largest share that three hostile leaders of eleven get; over a half they certify alone, so it ends."""
    world = swarm(HONEST + HOSTILE, OPEN, seed=seed, trust=trust)
    run_to_version(world, 4)
    band = world.peers[HONEST:]
    keys = frozenset(peer.me for peer in band)
    Ghosts(world, ghosts)
    for peer in band:
        peer.mischief = LeavingOut(peer.signer, accomplices=keys - {peer.me})
    largest = 0.0
    for _ in range(intervals):
        world.run(INTERVAL_SECONDS)
        largest = max(largest, share_of(keys, world))
        if largest > 1 / 2:
            break
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ghosts", type=int, nargs="*", default=[0, 9, 60, 300])
    options = parser.parse_args()
    seeds = range(options.seeds)
    for count in options.ghosts:
        starts = " ".join(str(versions_from_the_start(count, seed)) for seed in seeds)
        later = " ".join(str(versions_later(count, seed)) for seed in seeds)
        shares = " ".join(f"{largest_share(count, seed):.2f}" for seed in seeds)
        print(f"{count} ghosts: from the start {starts}; later {later}; hostile share {shares}", flush=True)


if __name__ == "__main__":
    main()
