"""A world with faults, all drawn from one seed: crashes, restarts, partitions, bad links (design §3)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from coordinator.manifest import PaceSpec
from coordinator.virtual.network import LinkFaults
from coordinator.virtual.simulation import World

FAULT_SECONDS = 60.0  # virtual time during which faults happen
SETTLE_SECONDS = 600.0  # virtual time within which a healed swarm must agree and go on


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What one seed did."""

    seed: int
    peers: int
    versions: int
    messages: int
    virtual_seconds: float
    events: dict[str, int]
    forks: int


def draw_world(seed: int, real_keys: bool = False) -> World:
    """Peers, speeds, links and pace of this seed."""
    draw = random.Random(seed)
    count = draw.randint(3, 12)
    fragments = draw.choice([1, 2, 4])
    pace = PaceSpec(
        fragments=fragments,
        steps_per_version=draw.choice([6, 12]),
        overlap=draw.choice([1, 2]),
        quorum=draw.randint(1, 4),
        min_group=draw.randint(1, 3),
        round_seconds=8.0,
    )
    founders = list(range(count)) if draw.random() < 0.5 else [0]
    witness = draw.random() < 0.3
    faults = LinkFaults(
        delay_max_seconds=draw.choice([0.02, 0.1, 0.4]),
        loss=draw.choice([0.0, 0.0, 0.01, 0.05]),
        duplication=draw.choice([0.0, 0.02]),
    )
    rates = [draw.choice([1.0, 1.0, 1.0, 2.0, 0.3]) for _ in range(count)]
    witnesses = frozenset({0}) if witness and count > pace.min_group + 1 else frozenset()
    return World(pace, rates, founders, seed, faults, witnesses, real_keys)


def run_seed(seed: int, real_keys: bool = False) -> ChaosReport:
    """Run one seed to its end; raises InvariantError (or AssertionError for lost liveness) if a promise is broken."""
    world = draw_world(seed, real_keys)
    draw = random.Random(~seed)
    for peer in world.peers:
        world.clock.after(draw.uniform(0.0, 2.0), peer.start)
    world.run(3.0)
    until = world.clock.now + FAULT_SECONDS
    while world.clock.now < until:
        world.run(draw.uniform(0.5, 8.0))
        _strike(world, draw)
    world.settle(SETTLE_SECONDS)
    return ChaosReport(
        seed,
        len(world.peers),
        world.versions(),
        world.network.sent,
        world.clock.now,
        dict(world.watcher.told),
        world.watcher.forks,
    )


def _strike(world: World, draw: random.Random) -> None:
    """One fault, or the end of one."""
    live = [peer for peer in world.peers if peer.alive]
    dead = [peer for peer in world.peers if not peer.alive]
    kind = draw.choice(["crash", "restart", "partition", "heal", "checkpoint", "calm"])
    if kind == "crash" and len(live) > 1:
        world.crash(draw.choice(live))
    elif kind == "restart" and dead:
        draw.choice(dead).start()
    elif kind == "partition":
        for peer in world.peers:
            world.network.sides[peer.me] = draw.randint(0, 1)
    elif kind == "heal":
        world.network.sides.clear()
    elif kind == "checkpoint" and live:
        draw.choice(live).checkpoint()
