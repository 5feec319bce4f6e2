"""A virtual peer: the real protocol core in a shell with virtual tensors, disk and network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from coordinator.adversary.mischief import Mischief, MischievousCore
from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import CHAIN_KEPT, Chain
from coordinator.chain.packed_history import PackedHistory
from coordinator.core.actions import (
    Action,
    Adopt,
    Apply,
    Discard,
    Encode,
    FetchState,
    Inspect,
    KeepEvidence,
    Open,
    RecordVote,
    Reduce,
    RoundKey,
    Send,
    VoteRecord,
)
from coordinator.core.events import (
    Event,
    FetchFailed,
    Inspected,
    PresenceSeen,
    Progress,
    Received,
    StateFetched,
    Tick,
    VoteRecorded,
)
from coordinator.engine.engine import Engine
from coordinator.run.manifest import Manifest
from coordinator.simulator.clock import VirtualClock
from coordinator.simulator.network import VirtualNetwork
from coordinator.simulator.tensors import Tensors, VirtualLearner, VirtualTensors, Work
from coordinator.wire.messages import Message
from coordinator.wire.presence import Presence, State
from dht.identity import PeerId, Signer, Verifier

STATES_SERVED = 4  # versions per fragment whose state a peer gives to others
FETCH_TIMEOUT_SECONDS = 1.0
VOTES_KEPT = 64


@dataclass(slots=True)
class Disk:
    """The data that survives a crash: a checkpoint of one moment, votes and evidence."""

    certificates: list[PackedHistory]  # up to the state of each fragment
    states: list[bytes]
    counted: list[int]
    births: list[tuple[int, int]] = field(default_factory=list)
    steps: float = 0.0
    votes: list[VoteRecord] = field(default_factory=list)
    saved: object = None  # data of the tensors' owner (`Tensors.save`)
    evidence: list[tuple[bytes, float]] = field(default_factory=list)  # each with the unix time when we learnt of it


TensorsMaker = Callable[[VirtualLearner, Disk], Tensors]
"""Makes the tensors of a starting peer from the data on its disk."""


def make_virtual_tensors(learner: VirtualLearner, disk: Disk) -> Tensors:
    """Return tensors that are only digests."""
    return VirtualTensors(learner, list(disk.states))


class Watch(Protocol):
    """An observer of all peers' actions."""

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        """See an action before it is carried out; may crash the peer at this very point."""
        ...

    def handled(self, peer: VirtualPeer) -> None:
        """See a peer after it has handled an event."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings that all virtual peers of one world share."""

    manifest: Manifest
    clock: VirtualClock
    network: VirtualNetwork
    random: random.Random
    verifier: Verifier
    directory: dict[PeerId, VirtualPeer]
    watch: Watch
    make_tensors: TensorsMaker
    chain_kept: int = CHAIN_KEPT
    carries: bool = True


@dataclass(slots=True)
class VirtualPeer:
    """One peer across its restarts; each start begins a new life. `engine` is None while it is dead."""

    world: Surroundings
    signer: Signer
    steps_per_second: float
    contributes: bool = True
    dialable: bool = True
    engine: Engine | None = None
    tensors: Tensors = field(init=False)
    disk: Disk = field(init=False)
    life: int = 0
    beats: int = 0
    tick_at: float = math.inf
    served: list[dict[bytes, bytes]] = field(default_factory=list)  # per fragment, newest last
    fetches: dict[int, int] = field(default_factory=dict)  # number of fetches begun, by fragment
    given: int = 0  # number of states and steps that others fetched here
    contributed: dict[bytes, list[Work]] = field(default_factory=dict)  # our contributed work by roster, over all lives
    mischief: Mischief | None = None  # None if the peer is honest
    own_pass: bytes = b""  # our pass, if the run asks for one

    def __post_init__(self) -> None:
        genesis = self.world.manifest.genesis
        self.disk = Disk([PackedHistory() for _ in genesis], list(genesis), [0] * len(genesis))

    @property
    def me(self) -> PeerId:
        return self.signer.peer_id

    @property
    def alive(self) -> bool:
        return self.engine is not None

    # -- life and death

    def start(self) -> None:
        """Begin a life with the data on disk."""
        world, disk, now = self.world, self.disk, self.world.clock.now
        core = MischievousCore(
            world.manifest,
            self.signer,
            world.verifier,
            world.random.randbytes,
            unix_offset_seconds=1e9,
            contributes=self.contributes,
            dialable=self.dialable,
            chain_kept=world.chain_kept,
            mischief=lambda: self.mischief,
        )
        core.admission.own = self.own_pass
        genesis = enumerate(world.manifest.genesis)
        chains = [Chain.holding(core.rules, index, state, disk.certificates[index]) for index, state in genesis]
        self.life += 1
        learner = VirtualLearner(
            self.me,
            self.steps_per_second if self.contributes else 0.0,
            world.manifest.config.tokens_per_step,
            started=now,
            steps_before=disk.steps,
            counted=list(disk.counted),
            births=[*disk.births, (int(disk.steps), self.life)],
        )
        self.tensors = world.make_tensors(learner, disk)
        core.proof_checker, core.carries = self.tensors.proof_checker, world.carries
        self.served = [{chain.digest: chain.state} for chain in chains]
        self.engine = Engine(core, chains, [chain.version for chain in chains], now)
        self.engine.restore_votes(disk.votes, now)
        self.engine.enforcement.restore(disk.evidence)
        world.network.inboxes[self.me] = self._receive
        self.heartbeat()

    def crash(self) -> None:
        """End this life at once; only data on disk survives."""
        self.engine = None
        self.tick_at = math.inf
        self.world.network.inboxes.pop(self.me, None)

    def checkpoint(self) -> None:
        """Write certificates, states and counters of this moment to disk, together."""
        if self.engine is None:
            return
        learner, now = self.tensors.learner, self.world.clock.now
        self.disk = Disk(
            [machine.held_chain.certificates.copy() for machine in self.engine.machines],
            list(self.tensors.states),
            list(learner.counted),
            list(learner.births),
            learner.steps(now),
            self.disk.votes,
            self.tensors.save(now),
            self.disk.evidence,
        )

    def heartbeat(self) -> None:
        """Report progress to the core and presence to all others, now and at intervals for the rest of this life."""
        if self.engine is None:
            return
        world, life = self.world, self.life
        steps = self.tensors.learner.steps(world.clock.now)
        self.handle(Progress(steps, self.tensors.learner.steps_per_second))
        if not self.alive:
            return  # a trap killed us
        presence = self.presence(steps)
        for other in world.directory.values():
            if other is not self and world.network.connected(self.me, other.me):
                world.clock.after(world.network.delay_seconds(), partial(other.see, self.me, presence))
        interval = world.manifest.config.pace.presence_seconds
        world.clock.after(interval, lambda: self.heartbeat() if self.life == life and self.alive else None)

    def presence(self, steps: int) -> Presence:
        """Make our presence record of this moment."""
        assert self.engine is not None
        versions, heads = self.engine.heads()
        self.beats += 1
        return Presence(
            boot=self.engine.core.boot,
            state=self._state(),
            steps=steps,
            steps_per_second=self.tensors.learner.steps_per_second,
            tokens=steps,
            versions=versions,
            heads=heads,
            addresses=(),
            dialable=self.engine.core.dialable,
            beat=self.beats,
        )

    def _state(self) -> State:
        if self.engine is not None and self.engine.core.draining:
            return "draining"
        return "training" if self.contributes else "hosting"

    # -- events

    def see(self, peer: PeerId, presence: Presence) -> None:
        """Take another peer's presence record."""
        if _lets_in(self, peer):
            self.handle(PresenceSeen(peer, presence))

    def _receive(self, sender: PeerId, message: Message, payload: bytes | None) -> None:
        if not (sender == self.me or _lets_in(self, sender)):
            return
        if self.mischief is not None and self.mischief.is_deaf_to(sender, message):
            return
        for answer in () if self.mischief is None else self.mischief.hears(sender, message):
            self.world.network.send(self.me, answer.to, answer.message, None)
        self.handle(Received(sender, message, payload))

    def handle(self, event: Event) -> None:
        """Pass an event to the core and carry out its actions."""
        if self.engine is None:
            return
        for action in self.engine.handle(event, self.world.clock.now):
            self.world.watch.acts(self, action)
            if not self.alive:
                return  # the watch crashed us at this very point
            self._perform(action)
        self.world.watch.handled(self)
        self._plan_tick()

    def _plan_tick(self) -> None:
        if self.engine is None:
            return
        due = self.engine.next_deadline(self.world.clock.now)
        if due < self.tick_at and due != math.inf:
            life, self.tick_at = self.life, due
            self.world.clock.after(due - self.world.clock.now + 1e-6, lambda: self._tick(life, due))

    def _tick(self, life: int, due: float) -> None:
        if (self.life, self.tick_at) == (life, due):  # else an earlier tick has replaced it
            self.tick_at = math.inf
            self.handle(Tick())

    def _later(self, delay_seconds: float, event: Callable[[], Event | None]) -> None:
        """Answer the core after a while, unless this life has ended by then."""
        life = self.life

        def answer() -> None:
            found = event() if self.life == life and self.alive else None
            if found is not None:
                self.handle(found)

        self.world.clock.after(delay_seconds, answer)

    # -- actions

    def _perform(self, action: Action) -> None:
        draw = self.world.random.uniform
        if isinstance(action, Send):
            self._send(action)
        elif isinstance(action, Encode):
            self._later(self.tensors.snapshot_in(action, self.world.clock.now, draw), lambda: self._encode(action))
        elif isinstance(action, Reduce | Open | Inspect | Apply):
            self._later(draw(0.001, 0.02), lambda: _computed(self, action))
        elif isinstance(action, RecordVote):
            self._later(draw(0.001, 0.005), lambda: self._record(action.record))
        elif isinstance(action, Adopt):
            self._adopt(action)
        elif isinstance(action, FetchState):
            self.fetches[action.certificate.fragment] = self.fetches.get(action.certificate.fragment, 0) + 1
            self._fetch(action.certificate, action.holders, self.fetches[action.certificate.fragment])
        elif isinstance(action, Discard):
            self.tensors.discard(action.key)
        elif isinstance(action, KeepEvidence):
            self.disk.evidence.append((action.ban.evidence.to_wire(), action.ban.unix_seconds))

    def _send(self, action: Send) -> None:
        for sent in [action] if self.mischief is None else self.mischief.sends(action):
            self.world.network.send(self.me, sent.to, sent.message, _carried(self.mischief, sent))

    def _encode(self, action: Encode) -> Event | None:
        encoded = self.tensors.encode(action, self.world.clock.now)
        if encoded is not None:
            self.contributed[action.key.roster_id] = self.tensors.learner.work(
                encoded.window_first, encoded.window_count
            )
        if encoded is None or self.mischief is None:
            return encoded
        return self.mischief.encodes(encoded, self.tensors.garbled)

    def _record(self, record: VoteRecord) -> Event:
        self.disk.votes = [*self.disk.votes[1 - VOTES_KEPT :], record]
        return VoteRecorded(RoundKey(record.fragment, record.version, record.roster_id))

    def _adopt(self, action: Adopt) -> None:
        self.tensors.adopt(action, self.world.clock.now)
        fragment = action.certificate.fragment
        served = self.served[fragment]
        served[action.certificate.digest] = self.tensors.states[fragment]
        while len(served) > STATES_SERVED:
            del served[next(iter(served))]

    def _fetch(self, certificate: Certificate, holders: Sequence[PeerId], fetch: int) -> None:
        """Ask the holders one after another, until a newer fetch replaces this one."""
        network = self.world.network

        def ask() -> Event | None:
            if self.fetches[certificate.fragment] != fetch:
                return None
            if not holders:
                return FetchFailed(certificate.fragment, certificate.digest)
            holder = self.world.directory[holders[0]]
            reached = holder.alive and network.connected(self.me, holder.me)
            if reached and holder.served[certificate.fragment].get(certificate.digest) == certificate.state:
                holder.given += 1
                return StateFetched(certificate.fragment, certificate.digest)
            self._fetch(certificate, holders[1:], fetch)
            return None

        self._later(2 * network.delay_seconds() if holders else FETCH_TIMEOUT_SECONDS, ask)


def _lets_in(host: VirtualPeer, peer: PeerId) -> bool:
    """Whether the host takes records and messages of this peer: like a real one, only of peers that may take part."""
    if host.engine is None:
        return False
    core = host.engine.core
    if not core.admission.is_closed:
        return True
    unix_seconds = core.unix_seconds(host.world.clock.now)
    return core.admission.refusal(peer, host.world.directory[peer].own_pass, unix_seconds) is None


def _carried(mischief: Mischief | None, action: Send) -> bytes | None:
    """Return the root of the payload that is sent with a message."""
    root = action.payload
    return root if mischief is None or root is None else mischief.carries(action.message, root)


def _computed(peer: VirtualPeer, action: Reduce | Open | Inspect | Apply) -> Event | None:
    """Return the result of a peer's tensor work, changed by its mischief, if any."""
    tensors, mischief = peer.tensors, peer.mischief
    match action:
        case Reduce() if mischief is not None:
            return mischief.reduces(tensors.reduce(mischief.merges(action)), partial(tensors.falsified, action))
        case Reduce():
            return tensors.reduce(action)
        case Open():
            return tensors.open(action)
        case Inspect():
            return _found(peer, action, tensors.inspect(action))
        case Apply():
            return tensors.apply(action)


def _found(peer: VirtualPeer, action: Inspect, inspected: Inspected) -> Inspected:
    """Return the finding that a peer claims; a hostile one's may depend on the reducer."""
    if peer.mischief is None or peer.engine is None:
        return inspected
    attempt = peer.engine.machines[action.key.fragment].find(action.key.roster_id)
    held = None if attempt is None else attempt.exchange.by_digest().get(action.result)
    return peer.mischief.inspects(action, inspected, None if held is None else held.reducer)
