"""Keys that call each leader to its own attempt, or hold its members there: honest peers meet all the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from coordinator.chain.chain import Chain
from coordinator.core.actions import Send
from coordinator.group.group import leader_of
from coordinator.run.manifest import TrustSpec
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.keys import KeyedSigner, virtual_peer_id
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import EVERYBODY_AT_ONCE, World
from coordinator.wire.messages import Join, Roster
from dht.identity import Signer
from dht.statement import Context, Statement, digest_of, make_statement
from tests.extra import extra
from tests.sim.worlds import INTERVAL_SECONDS, PACE, machine, run_to_version, statement_of, swarm, version

CALL_SECONDS = 0.3
SECONDS = 60.0
BOUNDS = TrustSpec(newcomers_share=0.25, network_share=0.25, probation_rounds=3)


def strangers(world: World, count: int) -> list[Signer]:
    secret = digest_of(b"simulation", bytes(8))
    return [KeyedSigner(virtual_peer_id(1000 + number, 0), secret) for number in range(count)]


def call(world: World, peers: Sequence[VirtualPeer], callers: Sequence[Signer]) -> None:
    """Call each of these peers into the next attempt that it leads itself."""
    for peer in peers:
        rounds = machine(peer).rounds
        attempt = rounds.joining.attempt_number + 1
        while leader_of(rounds.chain, attempt) != peer.me:
            attempt += 1
        for caller in callers if rounds.attempt is None else ():
            body = Join(
                attempt=attempt,
                leader=peer.me,
                boot=digest_of(b"boot", caller.peer_id.encode())[:16],
                dialable=True,
                contributes=True,
                expires_unix_seconds=int(1e9 + world.clock.now + 600),
            )
            world.network.send(caller.peer_id, peer.me, make_statement(caller, context(rounds.chain), body), None)
    world.clock.after(CALL_SECONDS, partial(call, world, peers, callers))


def context(chain: Chain) -> Context:
    return Context(
        run_id=chain.rules.run_id, kind="join", fragment=chain.fragment, version=chain.version, group=chain.digest
    )


@pytest.mark.parametrize("trust", [EVERYBODY_AT_ONCE, BOUNDS], ids=["anybody", "bounds"])
@pytest.mark.parametrize(("count", "hostile", "fresh"), [(4, 0, 2), *extra([(7, 0, 3), (10, 3, 0)])])
def test_few_cannot_call_the_leaders_apart(count: int, hostile: int, fresh: int, trust: TrustSpec) -> None:
    """Once a leader followed any three that asked, and no version came while they called."""
    world = swarm(count, trust=trust)
    run_to_version(world, 2)
    honest, members = world.peers[: count - hostile], world.peers[count - hostile :]
    callers = [peer.signer for peer in members] + strangers(world, fresh)
    assert isinstance(world.watcher, Watcher)
    world.watcher.hostile.update(caller.peer_id for caller in callers)
    before = version(honest[0])
    call(world, honest, callers)
    world.run(SECONDS)
    assert version(honest[0]) - before >= 0.9 * SECONDS / INTERVAL_SECONDS


class Reviser(VirtualPeer):
    """A leader that sends no bundle, and another draft of its roster whenever its time is nearly up."""

    __slots__ = ()

    def _send(self, action: Send) -> None:
        message = action.message
        if statement_of(message, "bundle"):
            return
        super()._send(action)
        if not isinstance(message, Statement) or message.context.kind != "roster":
            return
        if message.read(Roster).revision > 0:
            return
        for revision in range(1, 9):
            body = message.read(Roster).model_copy(update={"revision": revision})
            again = Send(action.to, make_statement(self.signer, message.context, body), None)
            delay_seconds = 0.94 * PACE.round_seconds * revision
            self.world.clock.after(delay_seconds, partial(super()._send, again))


def test_another_draft_of_a_roster_does_not_hold_its_members_longer() -> None:
    """Once each draft began a new deadline, nine of them in the end."""
    world = swarm(4)
    run_to_version(world, 2)
    culprit, honest = world.peers[-1], world.peers[0]
    assert isinstance(world.watcher, Watcher)
    world.watcher.hostile.add(culprit.me)
    culprit.__class__ = Reviser
    longest, last = 0.0, world.clock.now
    until = last + 120.0
    while last < until:
        before = version(honest)
        world.run(0.5)
        while version(honest) == before:
            world.run(0.5)
        longest, last = max(longest, world.clock.now - last), world.clock.now
    assert longest < 3 * PACE.round_seconds
