"""Newcomers on probation in whole worlds: their work is certified without weight, and counts once they are known."""

from __future__ import annotations

from coordinator.adversary.collusion import mischief_of
from coordinator.chain.certificate import Certificate
from coordinator.run.manifest import TrustSpec
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.wire.messages import Join, Message
from dht.identity import PeerId
from dht.statement import Statement
from tests.sim.worlds import INTERVAL_SECONDS, PACE, Drop, Tape, machine, run_to_version, run_until, statement_of, swarm

ROUNDS, FOUNDERS = 2, 4
TRUST = TrustSpec(newcomers_share=0.25, probation_rounds=ROUNDS)
OPEN = PACE.model_copy(update={"min_group": 3})


def with_newcomer(seed: int = 0) -> tuple[World, VirtualPeer]:
    world = swarm(FOUNDERS + 1, OPEN, founders=range(FOUNDERS), trust=TRUST, seed=seed)
    return world, world.peers[-1]


def with_work_of(world: World, peer: VirtualPeer) -> list[Certificate]:
    """Return the certificates with work of this peer, oldest first."""
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


def test_a_newcomer_checks_and_votes_after_its_probation() -> None:
    """Until then it applies each state in time with the others' certificate, if no message reaches it late."""
    world, newcomer = with_newcomer(seed=3)
    tape = Tape(world)
    run_to_version(world, ROUNDS + 4, 30 * INTERVAL_SECONDS)
    chain = machine(world.peers[0]).chain
    for kind in ("check", "vote"):
        spoken = {one.context.version for one in tape.statements(kind) if one.sender == newcomer.me}
        new = {at for at in range(chain.version) if chain.truncated(at).on_probation({newcomer.me})}
        assert spoken
        assert not spoken & new
    assert newcomer.fetches == {}


def test_a_newcomer_waits_for_those_who_are_bound_by_their_votes() -> None:
    """Else it would ask into one attempt after another while nobody leads, and take honest leaders for absent."""
    world, newcomer = with_newcomer()
    lost = set[bytes]()

    def all_votes_of_one_group(sender: PeerId, to: PeerId, message: Message) -> bool:
        if not isinstance(message, Statement) or not statement_of(message, "vote") or message.context.version != 1:
            return True
        lost.update([message.context.group] if not lost else [])
        return message.context.group not in lost

    world.network.filter = all_votes_of_one_group
    tape = Tape(world)
    run_to_version(world, 2, 60 * INTERVAL_SECONDS)
    asked = [(one.sender, one.read(Join).attempt) for one in tape.statements("join") if one.context.version == 1]
    assert lost
    assert {attempt for sender, attempt in asked if sender == newcomer.me} == {0, 1}
    assert {attempt for sender, attempt in asked if sender != newcomer.me} == {0, 1}


def test_a_newcomer_follows_a_redo_that_a_refutation_alone_explains() -> None:
    """It does so even if the false result comes to it later, or never."""
    world, newcomer = with_newcomer()
    cheat = world.peers[1]
    cheat.mischief = mischief_of(cheat.signer, ["false_results"], [])
    world.outcasts.add(cheat.me)
    assert isinstance(world.watcher, Watcher)
    world.watcher.hostile.add(cheat.me)
    world.network.filter = Drop(
        lambda sender, to, message: (sender, to) == (cheat.me, newcomer.me) and statement_of(message, "result"), times=1
    )

    def follows() -> bool:
        attempt = machine(newcomer).attempt
        return attempt is not None and newcomer.me in attempt.group.probation and bool(attempt.exchange.redone)

    run_until(world, follows, 30.0)


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
    """A quarter of a group of four founders is one newcomer; the other peers do not wait for them."""
    world = swarm(FOUNDERS + 2, OPEN, founders=range(FOUNDERS), trust=TRUST, seed=2)
    run_to_version(world, ROUNDS + 8, 60 * INTERVAL_SECONDS)
    chain = machine(world.peers[0]).chain
    for one in chain.certificates:
        new = chain.truncated(one.version - 1).on_probation(one.outcome.roster_ids)
        assert len(new) <= 1
        assert all(credit.tokens == 0 for credit in one.outcome.contributors if credit.peer in new)
    assert chain.active_set() == {peer.me for peer in world.peers}
    world.quiesce(120.0)
