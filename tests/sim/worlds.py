"""Small worlds for scenarios, and helpers to inspect them. All times are virtual."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Action, Send, Tell
from coordinator.engine.fragment import FragmentMachine
from coordinator.run.manifest import PaceSpec, TrustSpec
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import EVERYBODY_AT_ONCE, World
from coordinator.wire.messages import Message
from dht.identity import PeerId
from dht.statement import Statement

STEPS_PER_SECOND = 2.0
PACE = PaceSpec(fragments=1, steps_per_version=6, overlap=2, quorum=3, min_group=2, round_seconds=8.0)
INTERVAL_SECONDS = PACE.steps_per_version / STEPS_PER_SECOND
LINKS = LinkFaults(delay_min_seconds=0.005, delay_max_seconds=0.03)
SLOW = LinkFaults(delay_min_seconds=0.3, delay_max_seconds=1.2)  # a round takes nearly its whole deadline


def swarm(
    count: int,
    pace: PaceSpec = PACE,
    *,
    rates: Iterable[float] | None = None,
    founders: Iterable[int] | None = None,
    witnesses: Iterable[int] = (),
    links: LinkFaults = LINKS,
    seed: int = 0,
    trust: TrustSpec = EVERYBODY_AT_ONCE,
    carries: bool = True,
) -> World:
    """Return a world of `count` peers that all start now, all of them founders by default."""
    world = World(
        pace,
        list(rates or [STEPS_PER_SECOND] * count),
        list(range(count) if founders is None else founders),
        seed,
        links,
        frozenset(witnesses),
        trust=trust,
        carries=carries,
    )
    for peer in world.peers:
        peer.start()
    return world


def machine(peer: VirtualPeer, fragment: int = 0) -> FragmentMachine:
    """Return the state machine of one fragment at a living peer."""
    assert peer.engine is not None
    return peer.engine.machines[fragment]


def version(peer: VirtualPeer, fragment: int = 0) -> int:
    """Return the newest version that a living peer knows."""
    return machine(peer, fragment).chain.version


def leader(world: World, attempt: int = 0) -> VirtualPeer:
    """Return the peer that leads this attempt at the next version of fragment 0."""
    alive = max((peer for peer in world.peers if peer.alive), key=version)
    leaders = machine(alive).chain.leaders()
    return next(peer for peer in world.peers if peer.me == leaders[attempt % len(leaders)])


def run_until(world: World, true: Callable[[], bool], seconds_max: float) -> float:
    """Run until a condition is true and return the seconds that took; fails if it is not true in time."""
    started = world.clock.now
    until = started + seconds_max
    while not true():
        assert world.clock.step(until), f"not true after {seconds_max} s"
    return world.clock.now - started


def run_to_version(world: World, target: int, seconds_max: float = 0.0) -> float:
    """Run until all living peers know this version of fragment 0; the default limit allows one or two lost attempts."""
    lowest = min(version(peer) for peer in world.peers if peer.alive)
    patience = seconds_max or 1.5 * INTERVAL_SECONDS * max(target - lowest, 0) + 4 * PACE.round_seconds
    return run_until(world, lambda: all(version(peer) >= target for peer in world.peers if peer.alive), patience)


def certificates(world: World, at_version: int) -> list[Certificate]:
    """Return all certificates for this version of fragment 0, on any branch."""
    return [one for one in world.watcher.certified.values() if (one.fragment, one.version) == (0, at_version)]


def credited_steps(peer: VirtualPeer, of: PeerId, fragment: int = 0) -> int:
    """Return the certified steps of peer `of` in a fragment, as `peer` knows them."""
    found = machine(peer, fragment).chain.certificates
    return sum(one.steps for certificate in found for one in certificate.outcome.included() if one.peer == of)


def statement_of(message: Message, kind: str) -> bool:
    """Whether a message is a signed statement of this kind."""
    return isinstance(message, Statement) and message.context.kind == kind


@dataclass
class Drop:
    """A network filter that loses the messages for which `lost` holds, at most `times` of them."""

    lost: Callable[[PeerId, PeerId, Message], bool]
    times: int = 1 << 30
    dropped: int = field(default=0, init=False)

    def __call__(self, sender: PeerId, to: PeerId, message: Message) -> bool:
        if self.dropped >= self.times or not self.lost(sender, to, message):
            return True
        self.dropped += 1
        return False


@dataclass
class Tape:
    """A recording of every action of every peer from now on, with its time."""

    world: World
    entries: list[tuple[float, VirtualPeer, Action]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world.listener = lambda peer, action: self.entries.append((self.world.clock.now, peer, action))

    def statements(self, kind: str) -> list[Statement]:
        """Return the distinct statements of this kind that were sent, in order."""
        found = {}
        for _, _, action in self.entries:
            if (
                isinstance(action, Send)
                and isinstance(action.message, Statement)
                and action.message.context.kind == kind
            ):
                found[action.message.digest] = action.message
        return list(found.values())

    def told(self, event: str) -> list[tuple[float, VirtualPeer, Tell]]:
        """Return the event tape's lines for this event."""
        tells = ((at, peer, action) for at, peer, action in self.entries if isinstance(action, Tell))
        return [entry for entry in tells if entry[2].event == event]
