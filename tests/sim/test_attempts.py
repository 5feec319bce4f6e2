"""Which attempts a peer asks into while nothing comes of them: whoever is bound meanwhile must find it again."""

from __future__ import annotations

from coordinator.joining import ATTEMPTS_TRIED
from coordinator.virtual.simulation import World
from tests.sim.worlds import PACE, machine, run_to_version, swarm

DEADLINE = PACE.round_seconds


def lonely() -> World:
    """Of four peers the first is left alone."""
    world = swarm(4)
    run_to_version(world, 2)
    for peer in world.peers[1:]:
        world.crash(peer)
    return world


def test_whoever_asks_alone_uses_up_few_attempts() -> None:
    """The others may be bound for three of the longest deadlines, and come back where it was when they voted."""
    world = lonely()
    world.run(24 * DEADLINE)
    joining = machine(world.peers[0]).rounds.joining
    assert joining.first_attempt == 0
    assert joining.attempts_used() <= ATTEMPTS_TRIED * len(world.peers)  # those whose leaders are gone are skipped
