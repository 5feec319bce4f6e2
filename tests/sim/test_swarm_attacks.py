"""Unknown keys that certify among themselves: honest peers never adopt their versions, whatever happens to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from coordinator.adversary.mischief import Mischief
from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.core.events import Received
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.simulator.invariants import InvariantError, Watcher
from coordinator.simulator.keys import KeyedSigner, virtual_peer_id
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.wire.messages import CertificateNote, ChainNote, Message
from dht.identity import PeerId, Signer
from dht.statement import Statement, digest_of
from tests.coordinator.rigs import certified, decided
from tests.extra import extra
from tests.sim.worlds import (
    INTERVAL_SECONDS,
    PACE,
    Drop,
    machine,
    run_to_version,
    run_until,
    statement_of,
    swarm,
    version,
)

HONEST = 6
DEADLINE = PACE.round_seconds


def farm(world: World, count: int) -> list[KeyedSigner]:
    """Return `count` keys of one owner."""
    secret = digest_of(b"simulation", world.seed.to_bytes(8, "big"))
    return [KeyedSigner(virtual_peer_id(1000 + number, world.seed), secret) for number in range(count)]


def branch(chain: Chain, signers: Sequence[Signer], versions: int) -> list[Certificate]:
    """Return certificates that these keys make among themselves after the newest version of `chain`."""
    own, made = chain.truncated(chain.version), []
    for _ in range(versions):
        outcome = decided(own, [one.peer_id for one in signers], 10**9)
        made.append(certified(own.rules.run_id, outcome, signers))
        assert own.refusal(made[-1]) is None, "well formed: what is against it is who signed it"
        own.append(made[-1])
    return made


def show(peer: VirtualPeer, sender: PeerId, made: list[Certificate]) -> None:
    """Show a peer the news of a branch, then the whole branch in answer to its question."""
    for _ in range(2):
        peer.handle(Received(sender, CertificateNote(certificate=made[-1]), None))
        peer.handle(Received(sender, ChainNote(fragment=0, certificates=tuple(made)), None))


def follows(peer: VirtualPeer, made: list[Certificate]) -> bool:
    """Whether a peer follows any version of this branch."""
    chain = machine(peer).chain
    return any(chain.digest_at(one.version) == one.digest for one in made)


@pytest.mark.parametrize("keys", [1, PEERS_PER_GROUP_MAX])
@pytest.mark.parametrize("stalled", [False, True])
def test_versions_of_fresh_keys_are_adopted_by_no_honest_peer(keys: int, stalled: bool) -> None:
    """This holds even while no honest peer reaches another and nothing has been certified for long."""
    world = swarm(HONEST)
    run_to_version(world, 3)
    if stalled:
        world.network.sides = {peer.me: number for number, peer in enumerate(world.peers)}
        world.run(8 * INTERVAL_SECONDS)
    signers = farm(world, keys)
    made = branch(machine(world.peers[0]).chain, signers, 3)
    for peer in world.peers:
        show(peer, signers[0].peer_id, made)
        assert not follows(peer, made)
    world.run(INTERVAL_SECONDS)
    world.network.heal()
    before = version(world.peers[0])
    for peer in world.peers:
        show(peer, signers[0].peer_id, made)
    run_to_version(world, before + 3, 12 * DEADLINE)
    assert not any(follows(peer, made) for peer in world.peers)


def test_one_of_the_active_set_does_not_lead_the_others_away_with_strangers() -> None:
    """Fewer than a third of the live peers may all be hostile; the others have time to go on without them."""
    world = swarm(HONEST)
    run_to_version(world, 3)
    world.network.filter = Drop(lambda _, to, message: statement_of(message, "vote"))
    world.run(4 * INTERVAL_SECONDS)
    traitor, *honest = world.peers
    made = branch(machine(traitor).chain, [traitor.signer, *farm(world, 3)], 3)
    for peer in honest:
        show(peer, traitor.me, made)
        assert not follows(peer, made)


@pytest.mark.parametrize(("intervals", "seconds"), [(4, 1.0), (20, 3.0), *extra([(4, 0.0), (20, 0.0)])])
def test_honest_peers_are_not_led_away_when_all_meet_again(intervals: int, seconds: float) -> None:
    """That a peer sees nobody yet does not prove that few are left."""
    world = swarm(HONEST)
    run_to_version(world, 3)
    world.network.sides = {peer.me: number for number, peer in enumerate(world.peers)}
    world.run(intervals * INTERVAL_SECONDS)
    traitor, *honest = world.peers
    made = branch(machine(traitor).chain, [traitor.signer], 3)
    world.network.heal()
    world.run(seconds)
    for peer in honest:
        show(peer, traitor.me, made)
        assert not follows(peer, made)
    world.crash(traitor)
    run_to_version(world, version(honest[0]) + 2, 12 * DEADLINE)
    assert not any(follows(peer, made) for peer in honest)


@pytest.mark.parametrize(
    ("fragments", "each", "intervals"),
    [(3, 2, 4), *extra([(5, 1, 4), (2, 1, 7)])],
    ids=["two in each", "one in each", "late"],
)
def test_peers_that_are_few_in_each_other_fragment_lead_no_other_away(
    fragments: int, each: int, intervals: int
) -> None:
    """They are fewer than a third in each fragment's groups but the first, where they have no seat; together many."""
    world = swarm(HONEST + each * (fragments - 1), PACE.model_copy(update={"fragments": fragments}))
    honest, hostile = world.peers[:HONEST], world.peers[HONEST:]
    seats = {peer.me: 1 + number // each for number, peer in enumerate(hostile)}

    def elsewhere(sender: PeerId, _: PeerId, message: Message) -> bool:
        """Return whether this is a hostile join, or roster of its own, outside the sender's fragment."""
        return (
            isinstance(message, Statement)
            and message.context.kind in ("join", "roster")
            and seats.get(sender, message.context.fragment) != message.context.fragment
        )

    world.network.filter = Drop(elsewhere)
    everywhere = [(peer, fragment) for peer in honest for fragment in range(fragments)]
    run_until(world, lambda: all(version(*one) >= 5 for one in everywhere), 60 * INTERVAL_SECONDS * fragments)
    assert not machine(honest[0]).chain.active_set() & seats.keys()
    assert all(machine(honest[0], seat).chain.active_set() & seats.keys() for seat in seats.values())
    world.network.filter = Drop(lambda _, to, message: statement_of(message, "vote"))
    tempo, chain = machine(honest[0]).tempo, machine(honest[0]).chain
    world.run(intervals * tempo.interval_seconds(chain, world.clock.now))
    made = branch(chain, [peer.signer for peer in hostile], 3)
    for peer in honest:
        show(peer, hostile[0].me, made)
        assert not follows(peer, made)


def test_a_newcomer_follows_those_who_are_left() -> None:
    """Two of six went on by themselves; a peer that comes back from before adopts their version."""
    world = swarm(HONEST, PACE.model_copy(update={"quorum": 2}))
    run_to_version(world, 3)
    back, *others = world.peers
    back.checkpoint()
    for peer in (back, *others[2:]):
        world.crash(peer)
    run_until(world, lambda: version(others[0]) >= 6, 30 * INTERVAL_SECONDS)
    assert any(one.outcome.minor for one in machine(others[0]).chain.certificates)
    back.start()
    run_until(world, lambda: machine(back).chain.digest == machine(others[0]).chain.digest, 10 * INTERVAL_SECONDS)


@pytest.mark.parametrize("trick", ["passes_over", *extra(["shuts_out"])])
@pytest.mark.parametrize("seed", [0, *extra([1])])
def test_leaders_that_choose_whose_work_counts_never_get_half_of_it(trick: str, seed: int) -> None:
    """Two of eight lead now and then, with bundles of their own commitments only, or rosters without three peers."""
    world = swarm(8, seed=seed)
    *honest, first, second = world.peers
    both = frozenset({first.me, second.me})
    victims = frozenset(peer.me for peer in (honest if trick == "passes_over" else honest[:3]))
    for peer in (first, second):
        mischief = Mischief(peer.signer, victims=victims, accomplices=both - {peer.me})
        peer.mischief = replace(mischief, **{trick: True})
    world.run(30 * INTERVAL_SECONDS)
    made = list(world.watcher.certified.values())
    assert len(made) > 10  # of 29: their attempts fail, and peers that were shut out wait for a roster
    for outcome in (certificate.outcome for certificate in made):
        for partition in outcome.partitions:
            included = [] if partition is None else [outcome.contributors[at].peer for at in partition.included]
            assert partition is None or 2 * len(both.intersection(included)) < len(included)


def test_the_watcher_sees_when_half_of_what_is_merged_is_of_the_hostile() -> None:
    """This shows that such a simulated run would fail."""
    world = swarm(8)
    assert isinstance(world.watcher, Watcher)
    run_to_version(world, 1)
    [certificate] = [one for one in world.watcher.certified.values() if one.version == 1]
    world.watcher.hostile |= {world.peers[0].me, world.peers[1].me}
    world.watcher._honest_are_more(certificate)
    places = [at for at, one in enumerate(certificate.outcome.contributors) if one.peer in world.watcher.hostile]
    thin = tuple(one and one.model_copy(update={"included": tuple(places)}) for one in certificate.outcome.partitions)
    outcome = certificate.outcome.model_copy(update={"partitions": thin})
    with pytest.raises(InvariantError, match="half of what"):
        world.watcher._honest_are_more(certificate.model_copy(update={"outcome": outcome}))
