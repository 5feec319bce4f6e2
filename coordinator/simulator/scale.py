"""`python -m coordinator.simulator.scale --peers 1000`: measure the protocol among very many peers.

Every peer runs the real engine. Presence comes from a board of which each reads a part (`coordinator.simulator.board`).
Signatures are keyed hashes, checked and counted like real ones; tensors are digests. Peers die and come back. Prints
one JSON object: messages, bytes and signature checks per peer and version; the time until a version is certified and
until nearly all peers know it; and the traffic of the record store.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median

from coordinator.chain.certificate import Outcome
from coordinator.chain.chain import active_sets
from coordinator.core.actions import Action
from coordinator.core.events import Event, PeerGone, PresenceSeen, Progress, Tick
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, PaceSpec
from coordinator.simulator.board import Board
from coordinator.simulator.clock import VirtualClock
from coordinator.simulator.meter import CountingVerifier, Meter
from coordinator.simulator.network import LinkFaults, VirtualNetwork
from coordinator.simulator.peer import Surroundings, VirtualPeer, make_virtual_tensors
from coordinator.simulator.simulation import make_manifest, make_signers
from coordinator.wire.shards import PresenceShards
from dht import statement
from dht.identity import PeerId, Signer
from dht.wire import MESSAGE_BYTES_MAX

KNOWN_SHARE = 0.95  # a version counts as known once this share of live peers knows it
NOTICED_SHARE = 0.7  # share of a dead peer's groupmates whose transport notices its death
OFFLINE_SECONDS = 60.0
SECONDS_PER_VERSION_MAX = 400.0
EAGER_SECONDS, EAGER_SHARE = 0.5, 0.25  # as in peer.net.presence_loop


@dataclass(slots=True)
class BoardPeer(VirtualPeer):
    """A virtual peer that finds others on the board, and has signature checks counted as its own."""

    board: Board | None = None
    verifier: CountingVerifier | None = None
    shards: PresenceShards = field(init=False)
    began: float = 0.0  # when this life began
    forgot: float = 0.0  # when we last forgot silent peers

    def start(self) -> None:
        """Begin a life, without knowledge of the swarm's size."""
        self.shards, self.began = PresenceShards(self.me), self.world.clock.now
        VirtualPeer.start(self)

    def heartbeat(self) -> None:
        """Report progress, publish presence and read part of the others'; repeat this for the rest of this life."""
        engine, board, world, life, me = self.engine, self.board, self.world, self.life, self.me
        if engine is None or board is None:
            return
        now, pace = world.clock.now, world.manifest.config.pace
        steps = self.tensors.learner.steps(now)
        presence, shards = engine.core.presence, self.shards
        needed = active_sets(machine.chain for machine in engine.machines)
        if now - self.forgot >= pace.presence_seconds:
            self.forgot = now
            presence.forget(now, lifetimes=1.0)
        versions = engine.heads()[0]
        missing = [peer for peer in needed if not presence.is_live(peer, now)]
        read = board.get(shards.read(missing, world.random.getrandbits(32)), now)
        said: dict[PeerId, int | None] = {}
        ahead: list[PeerId] = []
        found = dict.fromkeys(chain.from_iterable(read.values()))
        found.pop(me, None)
        for peer in found:
            seen, at = board.records[peer]
            said[peer] = seen.shard_depth
            presence.see(peer, seen, at)
            if seen.versions > versions:
                ahead.append(peer)
        world.random.shuffle(ahead)  # as the presence loop does
        for peer in ahead:
            self.handle(PresenceSeen(peer, board.records[peer][0]))
        shards.found({place: len(peers) for place, peers in read.items()}, said, needed)
        presence.sample(shards.everybody, now)
        if not self.alive:
            return  # a trap killed us
        ours = self.presence(steps).model_copy(update={"shard_depth": shards.said})
        board.put(me, ours, shards.written(needed), now)
        self.handle(Progress(steps, self.tensors.learner.steps_per_second))
        self.handle(Tick())
        again = lambda: self.heartbeat() if self.life == life and self.alive else None  # noqa: E731
        seconds = max(EAGER_SECONDS, EAGER_SHARE * (now - self.began))
        world.clock.after(min(seconds, pace.presence_seconds), again)

    def handle(self, event: Event) -> None:
        """Handle an event, with signature checks counted as ours."""
        if self.verifier is not None:
            self.verifier.current = self.me
        VirtualPeer.handle(self, event)


@dataclass(slots=True, repr=False)  # a repr would contain that of every engine
class ScaleRun:
    """A run of very many peers with one fragment."""

    count: int
    seed: int
    deaths_per_version: float
    pace: PaceSpec
    clock: VirtualClock = field(default_factory=VirtualClock)
    meter: Meter = field(default_factory=Meter)
    random: random.Random = field(init=False)
    board: Board = field(init=False)
    peers: list[BoardPeer] = field(init=False)
    heard: dict[int, list[float]] = field(default_factory=dict)  # by version: when peers learnt of it
    held: dict[int, list[float]] = field(default_factory=dict)  # by version: when peers had its state
    begun: dict[int, float] = field(default_factory=dict)  # by version: when the first join was sent
    network: VirtualNetwork = field(init=False)

    def __post_init__(self) -> None:
        self.random, self.board = random.Random(self.seed), Board(self.pace.presence_lifetime_seconds)
        signers, inner = make_signers(self.count, self.seed, real_keys=False)
        verifier = CountingVerifier(inner, self.meter)
        manifest = make_manifest(self.pace, [one.peer_id for one in signers[:PEERS_PER_GROUP_MAX]], self.seed)
        self.network = VirtualNetwork(self.clock, self.random, LinkFaults())
        directory: dict[PeerId, VirtualPeer] = {}
        world = Surroundings(
            manifest, self.clock, self.network, self.random, verifier, directory, self, make_virtual_tensors
        )
        self.peers = [self._peer(world, signer, verifier) for signer in signers]
        directory.update({peer.me: peer for peer in self.peers})

    def _peer(self, world: Surroundings, signer: Signer, verifier: CountingVerifier) -> BoardPeer:
        rate = self.random.uniform(0.5, 1.5)
        return BoardPeer(world, signer, rate, board=self.board, verifier=verifier)

    # -- watching

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        """Count an action."""
        self.meter.acts(peer, action)

    def handled(self, peer: VirtualPeer) -> None:
        """Record when a peer learns of a version, holds its state, or asks into its group."""
        if peer.engine is None:
            return
        machine = peer.engine.machines[0]
        version = machine.chain.version
        if peer.beats and version > self._known.get(peer.me, 0):
            self._known[peer.me] = version
            self.heard.setdefault(version, []).append(self.clock.now)
        if peer.beats and machine.held > self._holds.get(peer.me, 0):
            self._holds[peer.me] = machine.held
            self.held.setdefault(machine.held, []).append(self.clock.now)
        if machine.joining_since is not None:
            self.begun.setdefault(version + 1, machine.joining_since)

    _known: dict[PeerId, int] = field(default_factory=dict)
    _holds: dict[PeerId, int] = field(default_factory=dict)

    # -- running

    def run(self, versions: int) -> None:
        """Start all peers and run until `versions` versions are certified, with deaths in between."""
        for peer in self.peers:
            self.clock.after(self.random.uniform(0, self.pace.presence_seconds), peer.start)
        until = versions * SECONDS_PER_VERSION_MAX
        if self.deaths_per_version:
            self._plan_death()
        while len(self.meter.certified) < versions and self.clock.step(until):
            pass
        end = self.clock.now + self.pace.presence_seconds  # let the news spread
        while self.clock.step(end):
            pass

    def _plan_death(self) -> None:
        every = self.pace.steps_per_version / self.deaths_per_version
        self.clock.after(self.random.expovariate(1 / every), self._death)

    def _death(self) -> None:
        victim = self.random.choice([peer for peer in self.peers if peer.alive])
        groupmates = [peer for peer in self.peers if self._grouped(peer, victim)]
        victim.crash()
        for other in groupmates:
            if self.random.random() < NOTICED_SHARE:
                self.clock.after(self.random.uniform(0.05, 1.0), partial(other.handle, PeerGone(victim.me)))
        self.clock.after(OFFLINE_SECONDS, victim.start)
        self._plan_death()

    @staticmethod
    def _grouped(peer: BoardPeer, victim: BoardPeer) -> bool:
        if peer.engine is None or peer is victim:
            return False
        machine = peer.engine.machines[0]
        groups = [machine.attempt, *machine.cells.cells()]
        return any(one is not None and victim.me in one.group.members for one in groups)

    # -- the result

    def report(self) -> dict[str, object]:
        """Return the measures for JSON; counts are per peer and version, the mean and the busiest peer's."""
        versions = max(len(self.meter.certified), 1)
        live = sum(peer.alive for peer in self.peers)

        def per(counter: Mapping[PeerId, float]) -> dict[str, float]:
            values = list(counter.values()) or [0]
            return {"mean": round(sum(values) / self.count / versions, 1), "max": round(max(values) / versions, 1)}

        known, held = self._spread(self.heard, live), self._spread(self.held, live)
        certified = {v: round(self.heard[v][0] - at, 1) for v, at in sorted(self.begun.items()) if v in self.heard}
        members = Counter(peer for one in self.meter.certified.values() for peer in one.outcome.roster)
        stored = max(len(peer.engine.core.presence.sightings) for peer in self.peers if peer.engine is not None)
        return {
            "peers": self.count,
            "versions": len(self.meter.certified),
            "minor": sum(one.outcome.minor for one in self.meter.certified.values()),
            "void": self.meter.told["round_void"],
            "peers_in_rosters": len(members),
            "peers_whose_work_is_in": [self.meter.worked[version] for version in sorted(self.heard)],
            "steps": [sum(one.steps for one in outcome.included()) for outcome in self._outcomes()],
            "messages_sent": per(self.meter.sent),
            "messages_received": per(self.meter.received),
            "bytes_sent": per(self.meter.sent_bytes),
            "bytes_received": per(self.meter.received_bytes),
            "fragments_sent": per(self.meter.fragments_sent),
            "fragments_received": per(self.meter.fragments_received),
            "steps_or_states_served": per({peer.me: peer.given for peer in self.peers}),
            "signature_checks": per(self.meter.checks),
            "seconds_to_certify": list(certified.values()),  # the first one has no cells yet
            "seconds_to_certify_median": median(certified.values()) if certified else None,
            "seconds_until_95_percent_know_median": median(known) if known else None,
            "versions_known_by_95_percent": len(known),
            "seconds_until_95_percent_hold_median": median(held) if held else None,
            "presence_records_kept_max": stored,
            "record_store": {
                "presence_bytes_put_per_peer_minute": self._per_minute(self.board.bytes_put),
                "presence_bytes_got_per_peer_minute": self._per_minute(self.board.bytes_got),
                "presence_records_held_per_peer": round(self.board.held(self.count, self.clock.now) / self.count, 1),
                "presence_depths": sorted({peer.shards.depth for peer in self.peers if peer.alive}),
            },
            "by_kind": {kind: [count, self.meter.kind_bytes[kind]] for kind, count in self.meter.kinds.most_common()},
            "busiest_receiver_bytes_by_kind": self.meter.busiest(),
            "virtual_seconds": round(self.clock.now, 1),
        }

    @staticmethod
    def _spread(times: Mapping[int, list[float]], live: int) -> list[float]:
        """Return the seconds from the first peer to nearly the last, for versions that nearly all peers got."""
        needed = int(KNOWN_SHARE * live)
        return [sorted(one)[needed - 1] - min(one) for one in times.values() if len(one) >= max(needed, 1)]

    def _outcomes(self) -> list[Outcome]:
        return sorted((one.outcome for one in self.meter.certified.values()), key=lambda outcome: outcome.version)

    def _per_minute(self, total: int) -> float:
        return round(total / self.count / max(self.clock.now, 1.0) * 60)


def main() -> int:
    """Run one crowd and print its report."""
    parser = argparse.ArgumentParser(prog="python -m coordinator.simulator.scale", description=__doc__)
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deaths", type=float, default=0.0, help="peers that die per version, for a minute each")
    arguments = parser.parse_args()
    pace = PaceSpec(
        fragments=1,
        overlap=1,
        presence_seconds=15.0,
        presence_lifetime_seconds=45.0,
        round_seconds=20.0,
    )
    statement.READ_KEPT_BYTES_MAX = MESSAGE_BYTES_MAX  # all peers share each decoded statement
    gc.disable()  # searching millions of objects for cycles takes a sixth of the time, and finds hardly any
    crowd = ScaleRun(arguments.peers, arguments.seed, arguments.deaths, pace)
    started = time.process_time()
    crowd.run(arguments.versions)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    cost = {"cpu_seconds": round(time.process_time() - started, 1), "megabytes": round(megabytes)}
    sys.stdout.write(json.dumps({**crowd.report(), **cost}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
