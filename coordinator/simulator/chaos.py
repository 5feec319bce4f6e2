"""A world with faults, all drawn from one seed: crashes at any point, restarts, partitions, bad links (design §3)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from coordinator.adversary.collusion import draw_band
from coordinator.core.events import PeerGone
from coordinator.run.manifest import PaceSpec, TrustSpec
from coordinator.simulator.faults import FAULT_POINTS
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World, make_signers

FAULT_SECONDS = 40.0  # virtual time during which faults happen
SETTLE_SECONDS = 600.0  # virtual time within which a healed swarm must agree and go on
ENDURED_SECONDS = 300.0  # virtual time within which a healed swarm must go on although hostile peers still act
ENDURED_VERSIONS = 1  # versions per fragment, on average, that must come in that time
VERSIONS_MIN = 10  # versions that must be certified before a seed is over


@dataclass(frozen=True, slots=True)
class SeedReport:
    """The outcome of one seed."""

    seed: int
    peers: int
    versions: int
    messages: int
    virtual_seconds: float
    events: dict[str, int]
    faults: dict[str, int]
    forks: int
    hostile: int = 0
    banned: int = 0  # hostile peers banned by every honest peer alive at the end
    digest: str = ""  # digest of the world's end (`World.digest`)


def draw_world(seed: int, real_keys: bool = False, attacked: bool = False, strangers: bool = False) -> World:
    """Draw peers, speeds, links and pace of this seed; if `attacked`, no group can consist of hostile peers alone.

    With `strangers` newcomers are bounded and on probation, and members audit each other.
    """
    draw = random.Random(seed)
    count = draw.choice([3, 3, 4, 4, 5, 5, 6, 7, 8, 10, 12])  # cost grows with the square
    count = max(count, 4) if attacked else count  # of three peers none may be hostile
    pace = PaceSpec(
        fragments=draw.choice([1, 2, 4]),
        steps_per_version=draw.choice([6, 12]),
        overlap=draw.choice([1, 2]),
        quorum=draw.randint(1, 4),
        min_group=draw.randint(1, 3),
        min_share=draw.choice([0.5, 0.5, 0.5, 0.6]),
        round_seconds=8.0,
    )
    if attacked:
        pace = pace.model_copy(update={"min_group": max(pace.min_group, -(-count // 3))})
    founders = list(range(count)) if draw.random() < 0.5 else [0]
    witness = draw.random() < 0.3
    links = LinkFaults(
        delay_max_seconds=draw.choice([0.02, 0.1, 0.4]),
        loss=draw.choice([0.0, 0.0, 0.01, 0.05]),
        duplication=draw.choice([0.0, 0.02]),
        ordered=random.Random(f"ordered {seed}").random() < 0.5,
    )
    rates = [draw.choice([2.0, 2.0, 2.0, 4.0, 0.5]) for _ in range(count)]
    witnesses = frozenset({0}) if witness and count > pace.min_group + 1 else frozenset[int]()
    if not strangers:
        return World(pace, rates, founders, seed, links, witnesses, real_keys)
    founders = list(range(min(max(pace.min_group + 1, -(-3 * count // 4)), count)))  # one may be a witness
    trust = TrustSpec(newcomers_share=0.25, probation_rounds=draw.randint(1, 3), audit_share=0.3)
    return World(pace, rates, founders, seed, links, witnesses, real_keys, trust=trust)


def corrupt(world: World, draw: random.Random) -> list[VirtualPeer]:
    """Make fewer than a third of the peers hostile; never the organiser, as a run may not begin without it.

    If newcomers are bounded, hostile peers may have further keys, which ask into groups and stay silent.
    """
    count = -(-len(world.peers) // 3) - 1
    hostile = draw.sample(world.peers[1:], min(count, draw.randint(1, max(count, 1))))
    if world.trust.bounds_newcomers and not _are_borne(world, hostile):
        newcomers = [peer for index, peer in enumerate(world.peers) if index not in world.founders]
        hostile = draw.sample(newcomers, min(len(hostile), len(newcomers)))
        while not _are_borne(world, hostile):
            hostile.pop()
    world.outcasts |= {peer.me for peer in hostile}
    honest = [peer.me for peer in world.peers if peer.me not in world.outcasts]
    more = draw.choice([0, 0, 1, 3]) if world.trust.bounds_newcomers else 0
    sybils = make_signers(len(world.peers) + more, world.seed, world.real_keys)[0][len(world.peers) :]
    band = draw_band([peer.signer for peer in hostile], honest, draw, sybils)
    for peer, mischief in zip(hostile, band, strict=True):
        peer.mischief = mischief
    if isinstance(world.watcher, Watcher):
        world.watcher.hostile |= world.outcasts | {sybil.peer_id for sybil in sybils}
    return hostile


def _are_borne(world: World, hostile: list[VirtualPeer]) -> bool:
    """Whether the swarm can bear these hostile peers.

    Fewer than a third of the voters must be hostile, even once all hostile newcomers, and no honest ones, are voters.
    Also enough honest founders must train, as newcomers' work has no weight before there are versions.
    """
    outcasts = {peer.me for peer in hostile}
    honest = [index for index in world.founders if world.peers[index].me not in outcasts]
    few_founders = 3 * (len(world.founders) - len(honest)) < len(world.founders)
    few_voters = 3 * len(hostile) < len(honest) + len(hostile)
    return few_founders and few_voters and len(set(honest) - world.witnesses) >= world.pace.min_group


def run_seed(seed: int, real_keys: bool = False, attacked: bool = False, strangers: bool = False) -> SeedReport:
    """Run one seed to its end; raises InvariantError if a promise of the protocol is broken.

    If `attacked`, some peers are hostile. When the faults end versions must go on with them; then they leave for good.
    """
    world = draw_world(seed, real_keys, attacked, strangers)
    draw = random.Random(~seed)
    hostile = corrupt(world, random.Random(f"hostile {seed}")) if attacked else []
    faults: dict[str, int] = dict.fromkeys(STRIKES, 0)
    for peer in world.peers:
        world.clock.after(draw.uniform(0.0, 2.0), peer.start)
    world.run(3.0)
    until = world.clock.now + FAULT_SECONDS
    while world.clock.now < until:
        world.run(draw.uniform(0.5, 8.0))
        kind = draw.choice(list(STRIKES))
        faults[kind] += STRIKES[kind](world, draw)
    if hostile:
        world.endure(ENDURED_SECONDS, ENDURED_VERSIONS)
    for peer in hostile:
        world.crash(peer)
    world.settle(SETTLE_SECONDS, VERSIONS_MIN)
    living = [peer.engine for peer in world.peers if peer.engine is not None]
    banned = sum(all(peer.me in engine.core.bans for engine in living) for peer in hostile)
    return SeedReport(
        seed,
        len(world.peers),
        world.versions(),
        world.network.sent,
        world.clock.now,
        dict(sorted(world.watcher.told.items())),
        {kind: count for kind, count in faults.items() if count},
        world.watcher.forks,
        len(hostile),
        banned,
        world.digest().hex(),
    )


# -- one fault, or the end of some; each returns True if there was anything to strike


def _crash(world: World, draw: random.Random) -> bool:
    live = [peer for peer in world.peers if peer.alive]
    if len(live) < 2:
        return False
    world.crash(draw.choice(live))
    return True


def _trap(world: World, draw: random.Random) -> bool:
    """Set a trap: a random peer dies when it next reaches a random fault point of a round."""
    world.traps[draw.choice(world.peers).me] = FAULT_POINTS[draw.choice(list(FAULT_POINTS))]
    return True


def _restart(world: World, draw: random.Random) -> bool:
    dead = [peer for peer in world.peers if not peer.alive]
    if dead:
        draw.choice(dead).start()
    return bool(dead)


def _partition(world: World, draw: random.Random) -> bool:
    for peer in world.peers:
        world.network.sides[peer.me] = draw.randint(0, 1)
    return True


def _one_way(world: World, draw: random.Random) -> bool:
    """Block one peer's links to or from most others, in one direction only."""
    deaf, by_hearing = draw.choice(world.peers).me, draw.random() < 0.5
    others = [peer.me for peer in world.peers if peer.me != deaf and draw.random() < 0.7]
    world.network.blocked |= {(other, deaf) if by_hearing else (deaf, other) for other in others}
    return True


def _freeze(world: World, draw: random.Random) -> bool:
    world.network.frozen = True
    world.clock.after(draw.uniform(0.5, 12.0), world.network.thaw)
    return True


def _false_alarm(world: World, draw: random.Random) -> bool:
    """Let some transports report a peer as lost that is well."""
    lost = draw.choice(world.peers)
    for other in world.peers:
        if other is not lost and draw.random() < 0.5:
            other.handle(PeerGone(lost.me))
    return True


def _heal(world: World, draw: random.Random) -> bool:
    world.network.heal()
    return True


def _checkpoint(world: World, draw: random.Random) -> bool:
    draw.choice(world.peers).checkpoint()
    return True


def _calm(world: World, draw: random.Random) -> bool:
    return True


STRIKES: Mapping[str, Callable[[World, random.Random], bool]] = MappingProxyType(
    {
        "crash": _crash,
        "trap": _trap,
        "restart": _restart,
        "partition": _partition,
        "one_way": _one_way,
        "freeze": _freeze,
        "false_alarm": _false_alarm,
        "heal": _heal,
        "checkpoint": _checkpoint,
        "calm": _calm,
    }
)
