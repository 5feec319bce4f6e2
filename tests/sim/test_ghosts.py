"""Keys that only publish presence cannot keep a run from starting, slow it down or take it over (docs/adr/0042)."""

from __future__ import annotations

import pytest

from coordinator.run.manifest import PEERS_PER_GROUP_MAX, TrustSpec
from tests.sim.ghosts import HONEST, OPEN, Ghosts, largest_share, versions_from_the_start, versions_later
from tests.sim.worlds import INTERVAL_SECONDS, PACE, machine, run_to_version, swarm


def test_ghosts_that_say_to_crawl_do_not_keep_a_run_from_starting() -> None:
    assert versions_from_the_start(HONEST + 1, intervals=12) >= 7  # of 11; they cost three intervals, once


@pytest.mark.slow
def test_nor_do_they_where_fragments_follow_each_other() -> None:
    world = swarm(HONEST, OPEN.model_copy(update={"fragments": 3}))
    Ghosts(world, 2 * HONEST, 0.0)
    world.run(12 * INTERVAL_SECONDS)
    assert all(machine(world.peers[0], fragment).chain.version >= 6 for fragment in range(3))


@pytest.mark.slow
def test_leaders_do_not_wait_long_for_the_joins_of_ghosts() -> None:
    calm = versions_later(0)
    assert versions_later(HONEST) > 0.9 * calm
    assert versions_later(2 * PEERS_PER_GROUP_MAX, intervals=12) > 0.9 * calm / 2


@pytest.mark.slow
@pytest.mark.parametrize("intervals", [10, 34])
def test_leaders_that_leave_honest_peers_out_do_not_win_with_ghosts(intervals: int) -> None:
    """Peers that are left out ask again, as without ghosts; once three of eleven got most of the active set."""
    assert largest_share(2 * PEERS_PER_GROUP_MAX, seed=2, intervals=intervals) < 0.3


@pytest.mark.slow
def test_nor_where_strangers_are_bounded_and_on_probation() -> None:
    strict = TrustSpec(newcomers_share=0.25, network_share=0.25, probation_rounds=3)
    assert largest_share(2 * PEERS_PER_GROUP_MAX, seed=1, trust=strict, intervals=20) < 0.3


def test_honest_latecomers_are_seated_soon_among_many_ghosts() -> None:
    """A leader calls only a few strangers, but first the ones that have asked, even if late."""
    world = swarm(HONEST, OPEN, founders=range(5), seed=3)
    late = world.peers[5:]
    for peer in late:
        world.crash(peer)
    run_to_version(world, 3)
    Ghosts(world, 5 * PEERS_PER_GROUP_MAX)
    world.run(INTERVAL_SECONDS)
    for peer in late:
        peer.start()
    chain = machine(world.peers[0]).chain
    before = chain.version
    world.run(6 * INTERVAL_SECONDS)
    seated = [certificate.outcome.roster_ids for certificate in chain.after(before, 99)]
    assert {peer.me for peer in late} <= frozenset().union(*seated)


def test_a_stranger_that_asks_is_seated_at_once_though_nobody_waits_for_it() -> None:
    world = swarm(HONEST, PACE, founders=range(1), seed=3)
    run_to_version(world, 1)
    [first] = machine(world.peers[0]).chain.certificates
    assert len(first.outcome.roster) == HONEST
