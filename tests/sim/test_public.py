"""The preset `public` against a hundred strangers' keys: nearly as many versions as without them (design §9)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable

import pytest

from coordinator.run.admission_spec import AdmissionSpec
from coordinator.run.manifest import PaceSpec, TrustSpec
from coordinator.simulator.simulation import World
from peer.cli.presets import preset_text
from tests.sim.crowding import Promising
from tests.sim.ghosts import Ghosts
from tests.sim.test_limits import SybilFarm
from tests.sim.worlds import LINKS, STEPS_PER_SECOND, version

PRESET = tomllib.loads(preset_text("public"))
HONEST, FOUNDERS, STRANGERS = 8, 4, 100
INTERVALS = 12
LEFT = 0.8


def swarm(seed: int) -> World:
    """Return a swarm with the preset's settings, of founders and other peers that are known by now."""
    pace = PaceSpec(**PRESET["pace"])
    world = World(
        pace,
        [STEPS_PER_SECOND] * HONEST,
        range(FOUNDERS),
        seed,
        LINKS,
        trust=TrustSpec(**PRESET["trust"]),
        admission=AdmissionSpec(**PRESET["admission"]),
    )
    for peer in world.peers:
        peer.start()
    return world


def versions(seed: int, attack: Callable[[World], object] = lambda _: None) -> int:
    """Return the versions of all fragments together after INTERVALS."""
    world = swarm(seed)
    attack(world)
    world.run(INTERVALS * world.pace.steps_per_version / STEPS_PER_SECOND)
    return sum(version(world.peers[0], fragment) for fragment in range(world.pace.fragments))


def ask(world: World) -> object:
    return SybilFarm(world, (), STRANGERS)


def promise(world: World) -> object:
    return Promising(world, SybilFarm(world, (), STRANGERS))


def appear(world: World) -> object:
    return Ghosts(world, STRANGERS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.hours) for seed in (1, 2)]])
def test_a_hundred_keys_of_strangers_cost_a_fifth_of_the_versions_at_most(seed: int) -> None:
    """The keys ask into every group, promise work there as well, or only claim to train."""
    calm = versions(seed)
    assert calm >= 8 * (INTERVALS - 2)
    found = {attack.__name__: versions(seed, attack) for attack in (ask, promise, appear)}
    assert min(found.values()) >= LEFT * calm, (calm, found)
