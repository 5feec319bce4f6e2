"""The organiser removes and readmits peers: all peers agree, and versions go on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.core.events import Received
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.trust.evidence import order_evidence
from coordinator.trust.orders import Order, delegate, sign_order
from coordinator.wire.messages import EvidenceNote
from dht.identity import PeerId
from tests.extra import extra
from tests.sim.worlds import INTERVAL_SECONDS, machine, run_to_version, run_until, swarm

PEERS = 6
ORGANISER, DEPUTY, ANN, BOB = 0, 1, 4, 5


def begin(seed: int = 3) -> World:
    world = swarm(PEERS, seed=seed)
    run_to_version(world, 2)
    assert world.manifest.organiser == world.peers[ORGANISER].me
    return world


def order(world: World, by: int, about: int, revoked: bool, serial: int) -> None:
    """Issue an order, as a peer does when its owner types it."""
    issuer = world.peers[by]
    run_id = world.manifest.run_id
    word = b"" if by == ORGANISER else delegate(world.peers[ORGANISER].signer, run_id, issuer.me).to_wire()
    signed = sign_order(issuer.signer, run_id, Order(subject=world.peers[about].me, revoked=revoked, serial=serial))
    issuer.handle(Received(issuer.me, EvidenceNote(evidence=order_evidence(signed, word).to_wire())))


def engines(peers: Sequence[VirtualPeer]) -> list[VirtualPeer]:
    return [peer for peer in peers if peer.engine is not None]


def shown_out(peer: VirtualPeer) -> set[PeerId]:
    assert peer.engine is not None
    return set(peer.engine.core.bans.held)


def rosters_since(peer: VirtualPeer, versions: int) -> list[frozenset[PeerId]]:
    return [one.outcome.roster_ids for one in machine(peer).chain.after(versions, 100)]


def heads(peers: Sequence[VirtualPeer]) -> set[tuple[int, bytes]]:
    return {(machine(peer).chain.version, machine(peer).chain.digest) for peer in peers}


def go_on(world: World, staying: Sequence[VirtualPeer], versions: int = 4) -> None:
    """Run until all these peers have `versions` more versions, and check that they are the same."""
    target = max(machine(peer).chain.version for peer in staying) + versions
    assert run_until(
        world, lambda: all(machine(peer).chain.version >= target for peer in staying), 60 * INTERVAL_SECONDS
    )
    assert len({machine(peer).chain.digest_at(target) for peer in staying}) == 1


@pytest.mark.parametrize("seed", [0, *extra(range(1, 4))])
def test_a_removed_peer_has_no_seat_two_versions_later(seed: int) -> None:
    """The order comes in the middle of a round."""
    world = begin(seed)
    world.run(0.37 * INTERVAL_SECONDS)
    before = machine(world.peers[ORGANISER]).chain.version
    order(world, ORGANISER, ANN, revoked=True, serial=1)
    ann, staying = world.peers[ANN], [peer for peer in world.peers if peer is not world.peers[ANN]]
    go_on(world, staying, versions=6)
    assert all(shown_out(peer) == {ann.me} for peer in world.peers)  # she knows it, too
    assert not any(ann.me in roster for roster in rosters_since(staying[0], before + 2))
    assert all(len(roster) == PEERS - 1 for roster in rosters_since(staying[0], before + 3))


def test_a_peer_removed_while_away_does_not_come_back() -> None:
    world = begin()
    ann = world.peers[ANN]
    world.crash(ann)
    order(world, ORGANISER, ANN, revoked=True, serial=1)
    staying = [peer for peer in world.peers if peer is not ann]
    go_on(world, staying)
    before = machine(staying[0]).chain.version
    ann.start()
    go_on(world, staying)
    assert not any(ann.me in roster for roster in rosters_since(staying[0], before))
    assert shown_out(ann) == {ann.me}


def test_a_peer_away_while_another_was_removed_learns_it() -> None:
    world = begin()
    bob = world.peers[BOB]
    world.crash(bob)
    order(world, ORGANISER, ANN, revoked=True, serial=1)
    staying = [peer for peer in world.peers if peer not in (bob, world.peers[ANN])]
    go_on(world, staying)
    bob.start()
    go_on(world, [*staying, bob])
    assert shown_out(bob) == {world.peers[ANN].me}


def test_a_peer_that_was_away_learns_every_one_of_many_orders() -> None:
    """There are more orders than one note holds."""
    world = begin()
    bob, organiser = world.peers[BOB], world.peers[ORGANISER]
    world.crash(bob)
    for number in range(40):
        about = Order(subject=f"{number:064x}".replace("0", "z"), revoked=True, serial=1)
        note = EvidenceNote(
            evidence=order_evidence(sign_order(organiser.signer, world.manifest.run_id, about)).to_wire()
        )
        organiser.handle(Received(organiser.me, note))
    staying = [peer for peer in world.peers if peer is not bob]
    go_on(world, staying)
    bob.start()
    go_on(world, world.peers)
    assert {len(shown_out(peer)) for peer in world.peers} == {40}


def test_a_readmitted_peer_has_a_seat_again() -> None:
    world = begin()
    order(world, ORGANISER, ANN, revoked=True, serial=1)
    staying = [peer for peer in world.peers if peer is not world.peers[ANN]]
    go_on(world, staying)
    order(world, ORGANISER, ANN, revoked=False, serial=2)
    go_on(world, staying, versions=12)
    assert all(shown_out(peer) == set() for peer in world.peers)
    assert world.peers[ANN].me in rosters_since(staying[0], machine(staying[0]).chain.version - 1)[0]


def test_a_restart_forgets_no_order() -> None:
    world = begin()
    order(world, ORGANISER, ANN, revoked=True, serial=1)
    world.run(INTERVAL_SECONDS)
    bob = world.peers[BOB]
    world.crash(bob)
    bob.start()
    assert shown_out(bob) == {world.peers[ANN].me}


def test_each_side_of_a_partition_shows_somebody_out() -> None:
    """Both sides also give opposite orders about one peer: the organiser has the last word."""
    world = begin()
    world.network.sides = {peer.me: number // 3 for number, peer in enumerate(world.peers)}
    order(world, ORGANISER, ANN, revoked=True, serial=5)
    # the co-organiser is on the other side
    deputy = BOB
    order(world, deputy, 2, revoked=True, serial=9)
    order(world, deputy, ANN, revoked=False, serial=9)
    world.run(6 * INTERVAL_SECONDS)
    assert shown_out(world.peers[1]) == {world.peers[ANN].me}
    assert shown_out(world.peers[3]) == {world.peers[2].me}
    world.network.heal()
    staying = [world.peers[number] for number in (0, 1, 3, 5)]
    go_on(world, staying)
    assert all(shown_out(peer) == {world.peers[ANN].me, world.peers[2].me} for peer in staying)


def test_orders_of_a_co_organiser_end_with_its_office() -> None:
    world = begin()
    order(world, DEPUTY, ANN, revoked=True, serial=1)
    world.run(3 * INTERVAL_SECONDS)
    assert shown_out(world.peers[2]) == {world.peers[ANN].me}
    order(world, ORGANISER, DEPUTY, revoked=True, serial=2)
    staying = [peer for peer in world.peers if peer is not world.peers[DEPUTY]]
    go_on(world, [peer for peer in staying if peer is not world.peers[ANN]], versions=12)
    assert all(shown_out(peer) == {world.peers[DEPUTY].me} for peer in staying)


def test_two_co_organisers_who_show_each_other_out_are_both_out_until_the_organiser_says_otherwise() -> None:
    world = begin()
    world.network.sides = {peer.me: number // 3 for number, peer in enumerate(world.peers)}
    first, second = DEPUTY, BOB  # one on each side
    order(world, first, second, revoked=True, serial=7)
    order(world, second, first, revoked=True, serial=8)
    world.run(2 * INTERVAL_SECONDS)
    assert shown_out(world.peers[2]) == {world.peers[second].me}
    assert shown_out(world.peers[3]) == {world.peers[first].me}
    world.network.heal()
    staying = [world.peers[number] for number in (0, 2, 3, 4)]
    go_on(world, staying)
    both = {world.peers[first].me, world.peers[second].me}
    assert all(shown_out(peer) == both for peer in world.peers)
    order(world, ORGANISER, first, revoked=False, serial=1)
    staying.append(world.peers[first])
    go_on(world, staying)
    assert all(shown_out(peer) == both - {world.peers[first].me} for peer in staying)


def test_other_peers_give_no_orders() -> None:
    world = begin()
    stranger = world.peers[BOB]
    run_id = world.manifest.run_id
    forged = sign_order(stranger.signer, run_id, Order(subject=world.peers[ANN].me, revoked=True, serial=1))
    note = EvidenceNote(evidence=order_evidence(forged).to_wire())
    for peer in world.peers[:3]:
        peer.handle(Received(stranger.me, note))
    go_on(world, world.peers)
    assert all(shown_out(peer) == set() for peer in world.peers)
