"""Peers that come, or come back, after all others forgot how the run began (design §8: the heads of an invite)."""

from __future__ import annotations

import pytest

from coordinator.chain.chain import ACTIVE_CERTIFICATES, Chain
from coordinator.chain.waypoint import chain_of_tail, heads_at, newest_waypoint, tail
from coordinator.run.manifest import PaceSpec
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from tests.extra import extra
from tests.sim.worlds import LINKS, machine, version

PACE = PaceSpec(fragments=2, steps_per_version=6, overlap=2, quorum=2, min_group=2, round_seconds=8.0)
KEPT = 16
LOSSY = LinkFaults(delay_min_seconds=0.01, delay_max_seconds=0.1, loss=0.02)


def long_run(links: LinkFaults = LINKS, seed: int = 0) -> World:
    """Return a world of four peers: the last one has not started, the others have forgotten how the run began."""
    world = World(PACE, [2.0] * 4, [0, 1, 2], seed, links, chain_kept=KEPT)
    for peer in world.peers[:3]:
        peer.start()
    assert world.run_until_versions(4 * KEPT, 600.0)
    assert all(machine(world.peers[0], fragment).chain.first_version > 0 for fragment in range(2))
    return world


def begin(peer: VirtualPeer, inviter: VirtualPeer) -> int:
    """Start a peer with a fresh invite; return the version at which it begins."""
    peer.start()
    assert peer.engine is not None
    assert inviter.engine is not None
    waypoint = newest_waypoint([one.held_chain for one in inviter.engine.machines])
    assert waypoint is not None
    heads = heads_at(inviter.engine.chains, waypoint.version)
    assert heads is not None
    tails = [tail(chain, waypoint.version) for chain in inviter.engine.chains]
    empty = [Chain(one.chain.rules, one.index, one.chain.genesis) for one in peer.engine.machines]
    chains = [
        chain_of_tail(one, waypoint.version, head, certificates)
        for one, head, certificates in zip(empty, heads, tails, strict=True)
    ]
    peer.engine.begin_at(chains, peer.world.clock.now)
    return waypoint.version


def test_without_heads_a_newcomer_is_told_that_it_cannot_follow() -> None:
    world = long_run()
    newcomer = world.peers[3]
    newcomer.start()
    world.run(30.0)
    assert version(newcomer) == 0
    assert newcomer.engine is not None
    assert newcomer.engine.fork_choice.out_of_reach({peer.me for peer in world.peers[:3]})
    assert world.watcher.told["out_of_reach"] == 3, "once by everybody, not again and again"


@pytest.mark.parametrize("seed", [0, *extra(range(1, 4))])
@pytest.mark.parametrize("links", [LOSSY, *extra([LINKS])])
def test_a_newcomer_begins_at_the_heads_and_contributes(links: LinkFaults, seed: int) -> None:
    world = long_run(links, seed)
    newcomer = world.peers[3]
    begun = begin(newcomer, world.peers[0])
    assert begun > KEPT
    world.run(60.0)
    for fragment in range(2):
        chain = machine(newcomer, fragment).chain
        assert chain.version > begun + ACTIVE_CERTIFICATES
        assert newcomer.me in chain.active_set(), f"seed {seed}: it contributes"
    world.settle(400.0)


@pytest.mark.parametrize("seed", [0, *extra(range(1, 4))])
def test_a_peer_that_comes_back_after_long_counts_no_work_twice(seed: int) -> None:
    """The simulator's judge compares each version's counts with each peer's contributions, across restarts."""
    world = long_run(seed=seed)
    returner = world.peers[2]
    returner.checkpoint()
    saved = version(returner)
    world.run(5.0)  # its work of this time is certified, but it will not remember that
    world.crash(returner)
    assert world.run_until_versions(world.versions() + 4 * KEPT, 600.0)
    begun = begin(returner, world.peers[1])
    assert begun > saved + KEPT
    assert machine(returner).held == saved
    world.run(60.0)
    assert returner.me in machine(returner).chain.active_set()
    world.quiesce(400.0)


@pytest.mark.slow
def test_a_crash_on_the_way_costs_only_the_way() -> None:
    world = long_run()
    newcomer = world.peers[3]
    begin(newcomer, world.peers[0])
    newcomer.checkpoint()  # before it has fetched any state
    world.crash(newcomer)
    world.run(30.0)
    begin(newcomer, world.peers[0])
    world.run(60.0)
    newcomer.checkpoint()
    held = version(newcomer)
    world.crash(newcomer)
    newcomer.start()  # it can go on from the state that it holds now
    assert version(newcomer) == held > KEPT
    world.settle(400.0)


@pytest.mark.slow
def test_the_inviter_may_die_once_the_heads_are_known() -> None:
    world = long_run()
    newcomer = world.peers[3]
    begin(newcomer, world.peers[0])
    world.crash(world.peers[0])
    world.run(90.0)
    assert newcomer.me in machine(newcomer).chain.active_set()
    world.quiesce(400.0)
