"""A hundred keys of one machine ask into every group; they get no third of any, and versions go on (design §9)."""

from __future__ import annotations

from dataclasses import replace

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.run.manifest import TrustSpec
from coordinator.simulator.keys import KeyedSigner, virtual_peer_id
from coordinator.simulator.simulation import World
from coordinator.wire.messages import NONCE_BYTES, Join, Roster
from dht.identity import PeerId
from dht.statement import Context, digest_of, make_statement
from tests.sim.worlds import INTERVAL_SECONDS, PACE, Tape, leader, machine, run_to_version, swarm, version

HONEST, SYBILS, VERSIONS = 8, 100, 5
FARM = b"\x08\x08\x04"
OPEN = PACE.model_copy(update={"min_group": 4})
ASK_SECONDS = 0.25


class SybilFarm:
    """Keys of one owner that join every open attempt, and stay silent after that."""

    def __init__(self, world: World, networks: tuple[bytes, ...], count: int = SYBILS) -> None:
        secret = digest_of(b"simulation", world.seed.to_bytes(8, "big"))
        names = (virtual_peer_id(1000 + number, world.seed) for number in range(count))
        self.signers = [KeyedSigner(name, secret) for name in names]
        self.world = world
        self.networks = networks
        self.asked: set[tuple[bytes, int, int]] = set()
        self.ask()

    @property
    def keys(self) -> frozenset[PeerId]:
        return frozenset(signer.peer_id for signer in self.signers)

    def ask(self) -> None:
        """Join the attempts in which honest peers are now, with every key once; repeat this soon."""
        for peer in self.world.peers:
            for fragment in range(self.world.pace.fragments):
                joining, chain = machine(peer, fragment).rounds.joining, machine(peer, fragment).chain
                place = (chain.digest, joining.attempt_number, fragment)
                if place not in self.asked:
                    self.asked.add(place)
                    self._join(chain, joining.attempt_number, joining.leader)
        self.world.clock.after(ASK_SECONDS, self.ask)

    def _join(self, chain: Chain, attempt: int, leads: PeerId) -> None:
        run_id = self.world.manifest.run_id
        context = Context(
            run_id=run_id, kind="join", fragment=chain.fragment, version=chain.version, group=chain.digest
        )
        for signer in self.signers:
            body = Join(
                attempt=attempt,
                leader=leads,
                boot=bytes(NONCE_BYTES),
                dialable=True,
                contributes=True,
                expires_unix_seconds=2 * 10**9,
                networks=self.networks,
            )
            statement = make_statement(signer, context, body)
            self.world.network.send(signer.peer_id, leads, statement, None)


def certified(world: World) -> list[Certificate]:
    return list(world.watcher.certified.values())


def most(world: World, keys: frozenset[PeerId]) -> float:
    """Return the largest share of these keys in any certified group."""
    return max(len(one.outcome.roster_ids & keys) / len(one.outcome.roster) for one in certified(world))


def run_slowly(world: World) -> None:
    """Run for a while: without probation, versions beside silent keys are luck (docs/research/results/hostile.md)."""
    world.run(60 * INTERVAL_SECONDS)
    assert len(certified(world)) > 1


def test_keys_of_one_network_get_a_quarter_of_a_group() -> None:
    world = swarm(HONEST, OPEN, trust=TrustSpec(network_share=0.25), seed=3)
    farm = SybilFarm(world, (FARM,))
    run_slowly(world)
    assert 0 < most(world, farm.keys) <= 0.25


def test_keys_that_nobody_knows_get_a_quarter_of_a_group() -> None:
    """This holds wherever they call from; the active set grows by no more than that per version."""
    world = swarm(HONEST, OPEN, trust=TrustSpec(newcomers_share=0.15), seed=4)
    farm = SybilFarm(world, ())
    run_slowly(world)
    chain = machine(world.peers[0]).chain
    for one in chain.certificates:
        before = chain.truncated(one.version - 1)
        newcomers = one.outcome.roster_ids - before.active_set() - chain.rules.founders
        assert len(newcomers) <= max(1, 0.15 * len(one.outcome.roster))
    assert any(one.outcome.roster_ids & farm.keys for one in chain.certificates)


def test_silent_keys_on_probation_cost_no_version() -> None:
    """Their joins do not start a round early, and no peer waits long for their missing messages."""
    world = swarm(HONEST, OPEN, trust=TrustSpec(newcomers_share=0.25, probation_rounds=3))
    farm = SybilFarm(world, ())
    run_to_version(world, VERSIONS, (VERSIONS + 1) * INTERVAL_SECONDS)
    for one in machine(world.peers[0]).chain.certificates:
        assert (one.outcome.attempt, len(one.outcome.included())) == (0, HONEST)
    assert most(world, farm.keys) > 0


def test_without_bounds_they_would_have_most_of_every_group() -> None:
    """This shows that the tests above can fail."""
    world = swarm(HONEST, OPEN)
    tape = Tape(world)
    farm = SybilFarm(world, (FARM,), 30)
    world.run(4 * INTERVAL_SECONDS)
    rosters = [[PeerId(join.sender) for join in one.read(Roster).joins] for one in tape.statements("roster")]
    assert max(len(farm.keys.intersection(members)) / len(members) for members in rosters) > 0.5


def test_members_do_not_follow_a_leader_that_admits_its_accomplices() -> None:
    world = swarm(HONEST, OPEN, trust=TrustSpec(network_share=0.25), seed=3)
    run_to_version(world, 1)
    stuffs = leader(world)
    assert stuffs.engine is not None
    machine(stuffs).chain.rules = replace(machine(stuffs).chain.rules, trust=TrustSpec())
    farm = SybilFarm(world, (FARM,))
    led = version(world.peers[0]) + 1
    run_to_version(world, led + 2, 60 * INTERVAL_SECONDS)
    assert most(world, farm.keys) <= 0.25
    first = machine(world.peers[0]).chain.certificates[led - 1]
    assert first.outcome.attempt > 0
    assert machine(world.peers[0]).chain.truncated(led - 1).leaders()[0] == stuffs.me
