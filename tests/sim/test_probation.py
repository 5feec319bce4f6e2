"""Newcomers on probation in whole worlds: their work is certified without weight, and counts once they are known."""

from __future__ import annotations

from coordinator.certificate import Certificate
from coordinator.manifest import TrustSpec
from coordinator.virtual.peer import VirtualPeer
from coordinator.virtual.simulation import World
from tests.sim.worlds import INTERVAL_SECONDS, PACE, machine, run_to_version, swarm

ROUNDS, FOUNDERS = 2, 4
TRUST = TrustSpec(newcomers_share=0.25, probation_rounds=ROUNDS)
OPEN = PACE.model_copy(update={"min_group": 3})


def with_newcomer(seed: int = 0) -> tuple[World, VirtualPeer]:
    world = swarm(FOUNDERS + 1, OPEN, founders=range(FOUNDERS), trust=TRUST, seed=seed)
    return world, world.peers[-1]


def with_work_of(world: World, peer: VirtualPeer) -> list[Certificate]:
    """The certificates with work of this peer, oldest first."""
    return [one for one in machine(world.peers[0]).chain.certificates if any(one.outcome.included_in(peer.me))]


def credited(certificate: Certificate, peer: VirtualPeer) -> int:
    return next(one.tokens for one in certificate.outcome.contributors if one.peer == peer.me)


def test_a_newcomer_counts_after_its_probation() -> None:
    world, newcomer = with_newcomer()
    run_to_version(world, ROUNDS + 4, 30 * INTERVAL_SECONDS)
    included = with_work_of(world, newcomer)
    assert [credited(one, newcomer) > 0 for one in included[: ROUNDS + 1]] == [False] * ROUNDS + [True]
    assert newcomer.me in machine(world.peers[0]).chain.active_set()
    world.quiesce(120.0)


def test_a_restart_changes_nothing_about_it() -> None:
    world, newcomer = with_newcomer(seed=1)
    run_to_version(world, ROUNDS + 2, 30 * INTERVAL_SECONDS)
    for peer in (newcomer, world.peers[0]):
        world.crash(peer)
        peer.start()
    run_to_version(world, ROUNDS + 6, 30 * INTERVAL_SECONDS)
    assert credited(with_work_of(world, newcomer)[-1], newcomer) > 0
    world.quiesce(120.0)


def test_two_newcomers_take_turns_until_one_is_known() -> None:
    """A quarter of four founders' groups is one; nobody else waits for them."""
    world = swarm(FOUNDERS + 2, OPEN, founders=range(FOUNDERS), trust=TRUST, seed=2)
    run_to_version(world, ROUNDS + 8, 60 * INTERVAL_SECONDS)
    chain = machine(world.peers[0]).chain
    for one in chain.certificates:
        new = chain.truncated(one.version - 1).on_probation(one.outcome.roster_ids)
        assert len(new) <= 1
        assert all(credit.tokens == 0 for credit in one.outcome.contributors if credit.peer in new)
    assert chain.active_set() == {peer.me for peer in world.peers}
    world.quiesce(120.0)
