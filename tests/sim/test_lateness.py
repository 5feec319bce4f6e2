"""Peers that are slow once, or always slower but in time, are not shut out by others' memory (docs/adr/0043)."""

from __future__ import annotations

import pytest

from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.wire.messages import Message, PartNote
from dht.identity import PeerId
from tests.extra import extra
from tests.sim.worlds import PACE, certificates, machine, run_to_version, swarm, version

SLOW_SECONDS = 0.25 * PACE.round_seconds  # longer than a tardy peer's moment, but in time: parts have 0.4
LATE_SECONDS = 0.45 * PACE.round_seconds


def with_slow_parts(seed: int) -> tuple[World, VirtualPeer, dict[str, float]]:
    """Return a world, its last peer, and the delay of that peer's parts in seconds, which the test may change."""
    world = swarm(5, seed=seed)
    slow, seconds = world.peers[-1], {"late": 0.0}

    def lateness(sender: PeerId, message: Message) -> float:
        return seconds["late"] if sender == slow.me and isinstance(message, PartNote) else 0.0

    world.network.lateness_seconds = lateness
    run_to_version(world, 2)
    return world, slow, seconds


def share_of_parts(world: World, peer: VirtualPeer, first: int) -> float:
    """Return the share of others' partitions, from this version on, that include this peer's part."""
    held = [flag for at in range(first, version(world.peers[0]) + 1) for flag in flags(world, peer, at)]
    return sum(held) / len(held)


def flags(world: World, peer: VirtualPeer, at_version: int) -> list[bool]:
    (certificate,) = certificates(world, at_version)
    outcome = certificate.outcome
    counted = zip(outcome.partitions, outcome.included_in(peer.me), strict=True)
    return [included for one, included in counted if one is not None and one.reducer != peer.me]


@pytest.mark.parametrize("seed", [0, *extra([1])])
def test_a_slow_peer_that_is_in_time_counts_in_every_version(seed: int) -> None:
    world, slow, seconds = with_slow_parts(seed)
    seconds["late"] = SLOW_SECONDS
    first = version(world.peers[0]) + 2
    run_to_version(world, first + 6, 200.0)
    assert share_of_parts(world, slow, first) == 1.0
    world.settle(200.0)


@pytest.mark.parametrize("seed", [0, *extra([1])])
def test_a_peer_that_was_too_late_for_a_while_counts_again_in_time_however_slow(seed: int) -> None:
    world, slow, seconds = with_slow_parts(seed)
    seconds["late"] = LATE_SECONDS
    run_to_version(world, version(world.peers[0]) + 3, 200.0)
    assert share_of_parts(world, slow, version(world.peers[0])) == 0.0
    seconds["late"] = SLOW_SECONDS
    run_to_version(world, version(world.peers[0]) + 18, 400.0)
    first = version(world.peers[0]) + 1
    run_to_version(world, first + 4, 200.0)
    assert share_of_parts(world, slow, first) == 1.0
    assert not [peer for peer, _ in machine(world.peers[0]).core.lateness.misses if peer == slow.me]
    world.settle(200.0)
