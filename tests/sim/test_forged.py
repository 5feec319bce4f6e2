"""Forged statements in others' names: they do not count, and take no room from real statements."""

from __future__ import annotations

from coordinator.core.events import Received
from coordinator.round.attempt import Attempt
from coordinator.round.early_messages import EARLY_MESSAGES_MAX, EARLY_OF_ONE_MAX
from coordinator.simulator.keys import virtual_peer_id
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from dht.identity import PeerId
from dht.statement import Context, Statement
from tests.sim.worlds import leader, machine, run_to_version, run_until, swarm

PATIENCE_SECONDS = 30.0


def in_group(world: World) -> tuple[VirtualPeer, Attempt]:
    """Return a member that has no input set yet, and its attempt."""
    run_to_version(world, 3)
    member = next(peer for peer in world.peers if peer is not leader(world))
    run_until(world, lambda: machine(member).attempt is not None, PATIENCE_SECONDS)
    attempt = machine(member).attempt
    assert attempt is not None
    assert attempt.exchange.inputs is None
    return member, attempt


def forge(world: World, member: VirtualPeer, kind: str, group: bytes, sender: PeerId, body: bytes) -> None:
    """Send a member a forged statement in the name of `sender`, from an outsider."""
    run_id, at = world.manifest.run_id, machine(member).chain.version
    context = Context(run_id=run_id, kind=kind, fragment=0, version=at, group=group)
    forged = Statement(context=context, sender=sender, body=body, signature=b"x" * 64)
    member.handle(Received(virtual_peer_id(7000, 1), forged, None))


def test_a_forged_word_is_no_sign_of_life() -> None:
    world = swarm(7, seed=1)
    member, attempt = in_group(world)
    silent = attempt.silent
    lost = sorted(silent)[0]
    attempt.lose(lost, world.clock.now)
    for sender in sorted(silent):
        for kind in ("commit", "vote", "result"):
            forge(world, member, kind, attempt.group.key.roster_id, sender, b"x")
    assert attempt.silent == silent
    assert lost in attempt.gone


def test_forged_words_take_no_room_from_what_comes_early() -> None:
    world = swarm(EARLY_MESSAGES_MAX // EARLY_OF_ONE_MAX + 1, seed=1)
    member, attempt = in_group(world)
    for sender in sorted(attempt.group.voters - {member.me}):
        for number in range(EARLY_OF_ONE_MAX):
            forge(world, member, "proposal", bytes(32), sender, bytes([number]))
    assert len(attempt.early_messages) == 0
    run_to_version(world, 4)
