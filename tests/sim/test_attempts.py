"""The attempts that a peer asks into while they fail: peers that were bound meanwhile must be able to find it."""

from __future__ import annotations

import pytest

from coordinator.core.timeline import RETRY_SHARE
from coordinator.engine.version_round import VersionRound
from coordinator.group.joining import ATTEMPTS_TRIED
from coordinator.simulator.simulation import World
from dht.identity import PeerId
from tests.extra import extra
from tests.sim.worlds import INTERVAL_SECONDS, PACE, machine, run_to_version, swarm

DEADLINE = PACE.round_seconds


def lonely() -> World:
    """Return a world of four peers in which only the first is left alive."""
    world = swarm(4)
    run_to_version(world, 2)
    for peer in world.peers[1:]:
        world.crash(peer)
    return world


def test_a_peer_that_asks_alone_uses_up_few_attempts() -> None:
    """The others may be bound for three of the longest deadlines, and come back to the attempt in which they voted."""
    world = lonely()
    world.run(24 * DEADLINE)
    joining = machine(world.peers[0]).rounds.joining
    assert joining.own.first_attempt == 0
    assert joining.own.used() <= ATTEMPTS_TRIED * len(world.peers)  # attempts whose leaders are gone are skipped


@pytest.mark.parametrize("intervals", [40, *extra([120])])
def test_a_peer_that_knows_less_of_silent_ones_than_the_leader_keeps_no_other_waiting(
    intervals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but one know of a silent peer and leave it out; that one insists on it, and all votes are needed."""
    world = swarm(5, PACE.model_copy(update={"min_share": 0.6}))
    silent, knows_less = world.peers[2].me, world.peers[3].me

    def known(rounds: VersionRound, attempt: int) -> frozenset[PeerId]:
        return frozenset() if rounds.core.me == knows_less else frozenset({silent})

    monkeypatch.setattr("coordinator.engine.version_round._silent", known)
    world.run(intervals * INTERVAL_SECONDS)
    assert world.versions() > intervals / 2  # 12 of 40 if it waits for its roster to be revised


def test_a_second_peer_that_has_made_no_step_yet_does_not_cost_an_attempt() -> None:
    """It asks at once, without a contribution, and a group needs two."""
    pace = PACE.model_copy(update={"round_seconds": 60.0})
    world = swarm(2, pace, founders=range(1))
    world.crash(world.peers[1])
    world.run(2 * INTERVAL_SECONDS)
    world.peers[1].start()
    assert world.run_until_versions(1, 2 * RETRY_SHARE * pace.round_seconds)
    world.settle(400.0)
