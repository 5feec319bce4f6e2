"""`python -m tests.sim.crowding`: versions that eight peers make while a hundred idle keys ask into every group.

One line for each way to limit strangers: versions after 60 intervals of virtual time, one figure per seed. Promising
keys commit to something in every group that admits them; no key ever sends a part, a check or a vote.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.core.actions import Action, Send
from coordinator.group.group import read_group
from coordinator.run.manifest import TrustSpec
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from dht.statement import Context, Statement, make_statement
from tests.coordinator.rigs import commit_body
from tests.sim.test_limits import FARM, HONEST, OPEN, SYBILS, SybilFarm
from tests.sim.worlds import INTERVAL_SECONDS, machine, statement_of, swarm, version

INTERVALS = 60


@dataclass(frozen=True)
class Way:
    """Limits on strangers, and the strangers' behaviour."""

    trust: TrustSpec
    keys: int = SYBILS
    networks: tuple[bytes, ...] = ()
    promise: bool = False


WAYS: Mapping[str, Way] = {
    "nobody asks": Way(TrustSpec(), keys=0),
    "newcomers 0.15": Way(TrustSpec(newcomers_share=0.15)),
    "newcomers 0.25, one network 0.25": Way(TrustSpec(newcomers_share=0.25, network_share=0.25), networks=(FARM,)),
    "newcomers 0.25, probation 3": Way(TrustSpec(newcomers_share=0.25, probation_rounds=3)),
    "the same, and they promise": Way(TrustSpec(newcomers_share=0.25, probation_rounds=3), promise=True),
}


class Promising:
    """A sender of commitments by the farm's keys to parts that nobody will ever get."""

    def __init__(self, world: World, farm: SybilFarm) -> None:
        self.world = world
        self.signers = {signer.peer_id: signer for signer in farm.signers}
        self.promised: set[bytes] = set()
        world.listener = self.listen

    def listen(self, peer: VirtualPeer, action: Action) -> None:
        if not isinstance(action, Send) or not statement_of(action.message, "roster"):
            return
        assert isinstance(action.message, Statement)
        if action.message.sender == peer.me and action.message.digest not in self.promised:
            self.promised.add(action.message.digest)
            self._promise(peer, action.message)

    def _promise(self, leader: VirtualPeer, roster: Statement) -> None:
        chain = machine(leader, roster.context.fragment).chain
        group = read_group(roster, chain, 0.0)
        run_id, key = self.world.manifest.run_id, group.key
        context = Context(run_id=run_id, kind="commit", fragment=key.fragment, version=key.version, group=key.roster_id)
        for member in group.probation & self.signers.keys():
            body = commit_body(group, member, probation=True)
            statement = make_statement(self.signers[member], context, body)
            self.world.network.send(member, leader.me, statement, None)


def versions(way: Way, seed: int) -> int:
    """Return the version that the first peer holds in the end."""
    world = swarm(HONEST, OPEN, trust=way.trust, seed=seed)
    farm = SybilFarm(world, way.networks, way.keys)
    if way.promise:
        Promising(world, farm)
    world.run(INTERVALS * INTERVAL_SECONDS)
    return version(world.peers[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    for name, way in WAYS.items():
        print(f"{name}: {' '.join(str(versions(way, seed)) for seed in range(options.seeds))}", flush=True)


if __name__ == "__main__":
    main()
