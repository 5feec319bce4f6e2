"""Two minor versions of the protocol share a swarm, and one replaces the other (design §8).

There is no next minor version yet, so some peers imitate one. Their messages and statements have one more field at the
end of every model that may grow (CONTRIBUTING.md, Changing what is sent). All messages travel encoded, in the frames
of the wire, and the other peers do not know such fields.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from coordinator.adversary import lies, mischief
from coordinator.adversary.mischief import Mischief
from coordinator.core import context as core
from coordinator.simulator import simulation
from coordinator.simulator.faults import FAULT_POINTS
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.network import VirtualNetwork
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.wire.messages import Message
from coordinator.wire.presence import Presence
from dht.identity import PeerId, Signer
from dht.statement import Context, Statement, make_statement
from dht.wire import Wire
from peer.net.frames import decode_header, encode_header
from tests.extra import extra
from tests.next_minor import next_minor_bytes, next_minor_statement
from tests.sim.worlds import INTERVAL_SECONDS, PACE, machine, run_to_version, run_until, swarm, version

SEEDS = range(6)
LATER_KIND = "later"


@dataclass
class Upgrade:
    """The peers that speak the next minor version now, and the kinds of messages that went over the wire."""

    newer: set[PeerId] = field(default_factory=set)
    bodies: set[str] = field(default_factory=set)  # kinds of statements signed with an extra field
    grown: set[str] = field(default_factory=set)  # messages sent with an extra field

    def state(self, signer: Signer, context: Context, body: Wire) -> Statement:
        """Make a statement like `make_statement`, in the signer's version of the body."""
        if signer.peer_id not in self.newer:
            return make_statement(signer, context, body)
        self.bodies.add(context.kind)
        return next_minor_statement(signer, context, body)

    def carry(self, sender: PeerId, message: Message) -> Message:
        """Encode a message in the sender's version, and return it as the receiver reads it."""
        header = encode_header(message)
        if sender in self.newer:
            header = header[:1] + next_minor_bytes(message)
            if header != encode_header(message):
                self.grown.add(type(message).__name__)
        read = decode_header(header)
        assert read == message
        return read  # type: ignore[return-value]  # transfers are no messages of the core


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """Make worlds encode and decode all messages of their peers."""
    found = Upgrade()

    class Wires(VirtualNetwork):
        def send(self, sender: PeerId, to: PeerId, message: Message, payload: bytes | None) -> None:
            VirtualNetwork.send(self, sender, to, found.carry(sender, message), payload)

    seen = VirtualPeer.see

    def see(peer: VirtualPeer, sender: PeerId, presence: Presence) -> None:
        data = next_minor_bytes(presence) if sender in found.newer else presence.to_wire()
        seen(peer, sender, Presence.from_wire(data))

    monkeypatch.setattr(simulation, "VirtualNetwork", Wires)
    monkeypatch.setattr(VirtualPeer, "see", see)
    for module in (core, lies, mischief):
        monkeypatch.setattr(module, "make_statement", found.state)
    return found


def presence() -> Presence:
    return Presence(
        boot=bytes(16), state="training", steps=1, steps_per_second=0.5, tokens=1, versions=(), heads=(), addresses=()
    )


def say_something_later(upgrade: Upgrade, world: World, peer: VirtualPeer) -> None:
    """Send all peers a kind of statement that only the next version knows."""
    at = machine(peer).chain
    context = Context(run_id=at.rules.run_id, kind=LATER_KIND, fragment=0, version=at.version, group=at.digest)
    said = upgrade.state(peer.signer, context, presence())
    for other in world.peers:
        if other is not peer:
            world.network.send(peer.me, other.me, said, None)


def assert_nobody_is_banned(world: World) -> None:
    assert isinstance(world.watcher, Watcher)
    assert not world.watcher.bans
    assert all(not peer.engine.core.bans.held for peer in world.peers if peer.engine is not None)


def banned_by(peers: list[VirtualPeer], culprit: VirtualPeer) -> bool:
    return all(peer.engine is not None and culprit.me in peer.engine.core.bans for peer in peers)


def hostile_world(upgrade: Upgrade, newer: slice, **behaviour: Any) -> tuple[World, VirtualPeer, list[VirtualPeer]]:
    """Return a world of six peers at version 2, its last peer, hostile from now on, and the other five."""
    world = swarm(6)
    upgrade.newer |= {peer.me for peer in world.peers[newer]}
    run_to_version(world, 2)
    culprit = world.peers[-1]
    culprit.mischief = Mischief(culprit.signer, **behaviour)
    assert isinstance(world.watcher, Watcher)
    world.watcher.hostile.add(culprit.me)
    return world, culprit, world.peers[:-1]


def test_the_next_version_says_more_wherever_it_may() -> None:
    """Without this the other tests would show nothing."""
    assert len(msgpack.unpackb(next_minor_bytes(presence()))) == len(Presence.model_fields) + 1
    context = Context(run_id=bytes(32), kind="join", fragment=0, version=0, group=b"")
    statement = make_statement(swarm(1).peers[0].signer, context, presence())
    assert next_minor_bytes(statement) == statement.to_wire()


@pytest.mark.parametrize("newer", [1, 3, 5], ids=lambda count: f"{count} of 5")
def test_both_versions_certify_together(upgrade: Upgrade, newer: int) -> None:
    world = swarm(5, seed=newer)
    upgrade.newer |= {peer.me for peer in world.peers[:newer]}
    older = {peer.me for peer in world.peers} - upgrade.newer
    run_to_version(world, 2)
    for peer in world.peers[:newer]:
        say_something_later(upgrade, world, peer)
    run_to_version(world, 5)
    certificates = machine(world.peers[-1]).chain.certificates
    assert any(one.voters & upgrade.newer and (one.voters & older or not older) for one in certificates)
    assert upgrade.bodies >= {"join", "commit", "check", "vote", LATER_KIND}
    assert upgrade.bodies >= {"roster", "bundle", "result", "proposal"} or older  # only leaders send some of these
    assert upgrade.grown >= {"PartNote", "OpenNote", "OpeningNote"}
    world.settle(120.0)
    assert_nobody_is_banned(world)


@pytest.mark.parametrize("seed", [*SEEDS[:2], *extra(SEEDS[2:])])
def test_peers_come_back_as_the_other_version_one_after_the_other(upgrade: Upgrade, seed: int) -> None:
    """A rolling upgrade, with some peers going back: each dies at some point of a round and restarts as the other."""
    draw = random.Random(seed)
    pace = PACE.model_copy(update={"fragments": 1 + seed % 2, "steps_per_version": 6 * (1 + seed % 2)})
    world = swarm(4 + seed % 3, pace, seed=seed)
    goes_back = draw.sample(world.peers, 2)
    for peer in [*world.peers, *goes_back]:
        assert world.run_until_versions(world.versions() + 1, 120.0)
        if draw.random() < 0.5:
            peer.checkpoint()
        world.traps[peer.me] = FAULT_POINTS[draw.choice(list(FAULT_POINTS))]
        until = world.clock.now + 2 * INTERVAL_SECONDS
        while peer.alive and world.clock.step(until):
            pass
        world.traps.pop(peer.me, None)
        if peer.alive:  # it never reached that point
            world.crash(peer)
        upgrade.newer ^= {peer.me}
        world.run(draw.uniform(0.0, 3.0))
        peer.start()
    assert upgrade.newer == {peer.me for peer in world.peers if peer not in goes_back}
    world.settle(300.0)
    assert_nobody_is_banned(world)


@pytest.mark.parametrize("newer", [slice(0, 6, 2), slice(1, 6, 2)], ids=["older culprit", "newer culprit"])
@pytest.mark.parametrize("kind", ["commit", "vote"])
def test_a_peer_that_says_two_things_is_convicted_in_both_versions(upgrade: Upgrade, kind: str, newer: slice) -> None:
    """Evidence holds the signed bytes, so a peer that does not know the extra field comes to the same verdict."""
    world, culprit, others = hostile_world(upgrade, newer, two_faced=frozenset({kind}))
    run_until(world, lambda: banned_by(others, culprit), 60 * INTERVAL_SECONDS)
    run_to_version(world, version(others[0]) + 2, 60 * INTERVAL_SECONDS)
    assert isinstance(world.watcher, Watcher)
    assert world.watcher.bans.keys() == {culprit.me}
    assert all(culprit.me not in machine(peer).chain.active_set() for peer in others)


@pytest.mark.parametrize("newer", [slice(0, 6, 2), slice(1, 6, 2)], ids=["older culprit", "newer culprit"])
def test_a_peer_that_reduces_falsely_is_convicted_in_both_versions(upgrade: Upgrade, newer: slice) -> None:
    """This evidence holds a bundle, a result and an exhibit, which its author encodes again from a refutation."""
    world, culprit, others = hostile_world(upgrade, newer, cheats=True)
    run_until(world, lambda: banned_by(others, culprit), 60 * INTERVAL_SECONDS)
    run_to_version(world, version(others[0]) + 2, 60 * INTERVAL_SECONDS)
    assert isinstance(world.watcher, Watcher)
    assert world.watcher.bans.keys() == {culprit.me}
