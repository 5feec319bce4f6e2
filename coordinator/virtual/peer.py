"""A virtual peer: the real protocol core, with a shell that only pretends to own tensors, a disk and a network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from coordinator.actions import (
    Action,
    Adopt,
    Apply,
    Encode,
    FetchState,
    RecordVote,
    Reduce,
    RoundKey,
    Send,
    VoteRecord,
)
from coordinator.certificate import Certificate
from coordinator.chain import Chain
from coordinator.core import Core
from coordinator.engine import Engine
from coordinator.events import Event, FetchFailed, PresenceSeen, Progress, Received, StateFetched, Tick, VoteRecorded
from coordinator.manifest import Manifest
from coordinator.messages import Message
from coordinator.presence import Presence
from coordinator.virtual.clock import VirtualClock
from coordinator.virtual.network import VirtualNetwork
from coordinator.virtual.tensors import VirtualLearner, VirtualTensors
from dht.identity import PeerId, Signer, Verifier

STATES_SERVED = 4  # versions per fragment whose state a peer still gives to others
FETCH_TIMEOUT_SECONDS = 1.0


@dataclass(slots=True)
class Disk:
    """What survives a crash."""

    certificates: list[tuple[Certificate, ...]]
    held: list[int]
    states: list[bytes]
    counted: list[int]
    steps: float = 0.0
    votes: list[VoteRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all virtual peers of one world share."""

    manifest: Manifest
    clock: VirtualClock
    network: VirtualNetwork
    random: random.Random
    verifier: Verifier
    directory: dict[PeerId, VirtualPeer]
    watch: Callable[[VirtualPeer, Action], None]


@dataclass(slots=True)
class VirtualPeer:
    """One peer over all its lives. `engine` is None while it is dead."""

    world: Surroundings
    signer: Signer
    steps_per_second: float
    contributes: bool = True
    dialable: bool = True
    engine: Engine | None = None
    tensors: VirtualTensors = field(init=False)
    disk: Disk = field(init=False)
    life: int = 0
    tick_at: float = math.inf
    served: dict[bytes, bytes] = field(default_factory=dict)
    steps_trained: float = 0.0
    restored: set[int] = field(default_factory=set)
    muted: bool = False

    def __post_init__(self) -> None:
        genesis = self.world.manifest.genesis
        fragments = len(genesis)
        self.disk = Disk([()] * fragments, [0] * fragments, list(genesis), [0] * fragments)

    @property
    def me(self) -> PeerId:
        return self.signer.peer_id

    @property
    def alive(self) -> bool:
        return self.engine is not None

    # -- life and death

    def start(self) -> None:
        """Begin a life with what is on disk."""
        world, now = self.world, self.world.clock.now
        core = Core(
            world.manifest,
            self.signer,
            world.verifier,
            world.random.randbytes,
            unix_offset_seconds=1e9,
            contributes=self.contributes,
            dialable=self.dialable,
        )
        chains = [
            Chain(core.rules, fragment, genesis, list(certificates))
            for fragment, (genesis, certificates) in enumerate(
                zip(world.manifest.genesis, self.disk.certificates, strict=True)
            )
        ]
        config = world.manifest.config
        learner = VirtualLearner(
            self.me,
            self.steps_per_second,
            config.tokens_per_step,
            config.pace.fragments,
            started=now,
            steps_before=self.disk.steps,
            counted=list(self.disk.counted),
        )
        self.tensors = VirtualTensors(learner, list(self.disk.states))
        self.restored = set(range(len(chains))) if self.life else set()
        self.engine = Engine(core, chains, self.disk.held, now)
        self.engine.bind(self.disk.votes, now)
        self.life += 1
        world.network.inboxes[self.me] = self._receive
        self.heartbeat()

    def crash(self) -> None:
        """End this life at once; nothing that was not on disk survives."""
        self.steps_trained += self.tensors.learner.steps(self.world.clock.now) - self.disk.steps
        self.engine = None
        self.tick_at = math.inf
        self.world.network.inboxes.pop(self.me, None)

    def checkpoint(self) -> None:
        """Put chains, states and counters on disk, together."""
        if self.engine is None:
            return
        chains = [machine.chain for machine in self.engine.machines]
        self.disk.certificates = [tuple(chain.certificates) for chain in chains]
        self.disk.held = [machine.held for machine in self.engine.machines]
        self.disk.states = list(self.tensors.states)
        self.disk.counted = list(self.tensors.learner.counted)
        self.steps_trained += self.tensors.learner.steps(self.world.clock.now) - self.disk.steps
        self.disk.steps = self.tensors.learner.steps(self.world.clock.now)
        self.tensors.learner.steps_before = self.disk.steps
        self.tensors.learner.started = self.world.clock.now

    def heartbeat(self) -> None:
        """Report progress to the core, presence to everybody else; goes on for the rest of this life."""
        if self.engine is None:
            return
        world, life = self.world, self.life
        steps = self.tensors.learner.steps(world.clock.now)
        self.handle(Progress(steps, self.steps_per_second if self.contributes else 0.0))
        presence = self.presence(steps)
        for other in world.directory.values():
            if other is not self and world.network.connected(self.me, other.me):
                world.clock.after(world.network.delay_seconds(), partial(other.see, self.me, presence))
        interval = world.manifest.config.pace.presence_seconds
        world.clock.after(interval, lambda: self.heartbeat() if self.life == life and self.alive else None)

    def presence(self, steps: int) -> Presence:
        assert self.engine is not None
        versions, heads = self.engine.heads()
        return Presence(
            boot=self.engine.core.boot,
            state="training" if self.contributes else "hosting",
            steps=steps,
            steps_per_second=self.steps_per_second if self.contributes else 0.0,
            tokens=steps,
            versions=versions,
            heads=heads,
            addresses=(),
        )

    # -- events

    def see(self, peer: PeerId, presence: Presence) -> None:
        if self.alive:
            self.handle(PresenceSeen(peer, presence))

    def _receive(self, sender: PeerId, message: Message, payload: bytes | None) -> None:
        if self.alive and not self.muted:
            self.handle(Received(sender, message, payload))

    def handle(self, event: Event) -> None:
        """Hand an event to the core and carry out what it asks for."""
        if self.engine is None:
            return
        for action in self.engine.handle(event, self.world.clock.now):
            self.world.watch(self, action)
            if not self.alive:
                return  # the watcher killed us at this very point
            self._perform(action)
        self._plan_tick()

    def _plan_tick(self) -> None:
        assert self.engine is not None
        due = self.engine.next_deadline(self.world.clock.now)
        if due >= self.tick_at:
            return
        life, self.tick_at = self.life, max(due, self.world.clock.now)
        self.world.clock.after(due - self.world.clock.now + 1e-6, lambda: self._tick(life, self.tick_at))

    def _tick(self, life: int, _: float) -> None:
        if self.engine is None or self.life != life:
            return
        self.tick_at = math.inf
        self.handle(Tick())

    def _later(self, delay_seconds: float, event: Callable[[], Event]) -> None:
        """Answer the core after a while, unless this life has ended by then."""
        life = self.life
        self.world.clock.after(delay_seconds, lambda: self.handle(event()) if self.life == life else None)

    # -- actions

    def _perform(self, action: Action) -> None:
        draw = self.world.random.uniform
        if isinstance(action, Send):
            self.world.network.send(self.me, action.to, action.message, action.payload)
        elif isinstance(action, Encode):
            step_seconds = 1 / self.steps_per_second
            self._later(draw(0, step_seconds), lambda: self.tensors.encode(action, self.world.clock.now))
        elif isinstance(action, Reduce):
            self._later(draw(0.001, 0.02), lambda: self.tensors.reduce(action))
        elif isinstance(action, Apply):
            self._later(draw(0.001, 0.02), lambda: self.tensors.apply(action))
        elif isinstance(action, RecordVote):
            self._later(draw(0.001, 0.005), lambda: self._record(action.record))
        elif isinstance(action, Adopt):
            self._adopt(action)
        elif isinstance(action, FetchState):
            self._fetch(action.certificate, action.holders)

    def _record(self, record: VoteRecord) -> Event:
        self.disk.votes = [*self.disk.votes[-64:], record]
        return VoteRecorded(RoundKey(record.fragment, record.version, record.roster_id))

    def _adopt(self, action: Adopt) -> None:
        fragment = action.certificate.fragment
        self.tensors.adopt(action)
        if fragment in self.restored:
            self.restored.discard(fragment)
            if action.snapshot is None:  # what the checkpoint had not counted may be in versions we missed
                self.tensors.learner.counted[fragment] = self.tensors.learner.steps(self.world.clock.now)
        self.served[action.certificate.digest] = action.certificate.state
        while len(self.served) > STATES_SERVED * len(self.tensors.states):
            del self.served[next(iter(self.served))]

    def _fetch(self, certificate: Certificate, holders: Sequence[PeerId]) -> None:
        """Ask the holders one after the other; the first that has the state and can be reached gives it."""
        network, life = self.world.network, self.life
        for asked, holder in enumerate(holders):
            peer = self.world.directory[holder]
            if peer.alive and network.connected(self.me, holder) and certificate.digest in peer.served:
                delay = asked * FETCH_TIMEOUT_SECONDS + 2 * network.delay_seconds()
                event: Event = StateFetched(certificate.fragment, certificate.digest)
                self.world.clock.after(delay, lambda: self.handle(event) if self.life == life else None)
                return
        failed = FetchFailed(certificate.fragment, certificate.digest)
        self.world.clock.after(FETCH_TIMEOUT_SECONDS, lambda: self.handle(failed) if self.life == life else None)

    def steps_ever(self) -> float:
        """Inner steps over all lives."""
        if self.engine is None:
            return self.steps_trained
        return self.steps_trained + self.tensors.learner.steps(self.world.clock.now) - self.disk.steps
