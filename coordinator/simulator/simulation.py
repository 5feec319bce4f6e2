"""One seeded run of a virtual swarm: peers, faults, invariants (design §3, §6.5).

All randomness comes from the seed, so a failing seed fails again. `coordinator.simulator.chaos` draws whole worlds;
scenarios build theirs by hand with `World`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from coordinator.chain.certificate import more_than_share, votes_needed
from coordinator.chain.chain import CHAIN_KEPT
from coordinator.core.actions import Action
from coordinator.core.events import PeerGone
from coordinator.group.group import inputs_needed
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import Manifest, OuterSpec, PaceSpec, RunConfig, TrustSpec
from coordinator.run.model_spec import ModelSpec
from coordinator.simulator.clock import VirtualClock
from coordinator.simulator.invariants import InvariantError, Watcher
from coordinator.simulator.judgement import check_converged, check_messages, check_work
from coordinator.simulator.keys import KeyedSigner, KeyedVerifier, virtual_peer_id
from coordinator.simulator.network import LinkFaults, VirtualNetwork
from coordinator.simulator.observer import EventCounter
from coordinator.simulator.peer import Surroundings, TensorsMaker, VirtualPeer, make_virtual_tensors
from dht.identity import Identity, KeyVerifier, PeerId, Signer, Verifier
from dht.statement import digest_of

CALM = LinkFaults()
EVERYBODY_AT_ONCE = TrustSpec()


def make_signers(count: int, seed: int, real_keys: bool) -> tuple[list[Signer], Verifier]:
    """Make signers and a verifier for virtual peers: keyed hashes, or real Ed25519."""
    if real_keys:
        seeds = [digest_of(b"identity", seed.to_bytes(8, "big"), bytes([number])) for number in range(count)]
        return [Identity(one) for one in seeds], KeyVerifier()
    secret = digest_of(b"simulation", seed.to_bytes(8, "big"))
    signers: list[Signer] = [KeyedSigner(virtual_peer_id(number, seed), secret) for number in range(count)]
    return signers, KeyedVerifier(secret)


def make_manifest(
    pace: PaceSpec,
    founders: Sequence[PeerId],
    seed: int,
    trust: TrustSpec = EVERYBODY_AT_ONCE,
    admission: AdmissionSpec | None = None,
) -> Manifest:
    """Make a manifest for virtual peers."""
    # nothing trains here; fixed, so that a new shipped default does not change every seed's draws
    inner, outer = InnerSpec(optimizer="adamw8bit"), OuterSpec(learning_rate=0.65)
    config = RunConfig(
        name="virtual",
        seed=seed,
        versions=10**6,
        model=ModelSpec(),
        inner=inner,
        outer=outer,
        pace=pace,
        trust=trust,
        admission=admission,
    )
    genesis = tuple(digest_of(b"genesis", bytes([fragment])) for fragment in range(pace.fragments))
    return Manifest(
        config=config,
        organiser=founders[0],
        founders=tuple(founders),
        data_digest=digest_of(b"no data"),
        genesis=genesis,
        created_unix_seconds=0,
    )


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """A real training run for virtual peers: its manifest, and the maker of their tensors."""

    describe: Callable[[Sequence[PeerId]], Manifest]  # the manifest, given the founders
    make_tensors: TensorsMaker


@dataclass(slots=True)
class World:
    """Virtual peers with a clock and a network. A watcher sees all of it, and judges it unless there is a `setting`."""

    pace: PaceSpec
    rates: Sequence[float]
    founders: Sequence[int]
    seed: int = 0
    faults: LinkFaults = CALM
    witnesses: frozenset[int] = frozenset()
    real_keys: bool = False
    setting: VirtualRun | None = None
    chain_kept: int = CHAIN_KEPT
    carries: bool = True
    trust: TrustSpec = EVERYBODY_AT_ONCE
    admission: AdmissionSpec | None = None
    clock: VirtualClock = field(default_factory=VirtualClock)
    random: random.Random = field(init=False)
    manifest: Manifest = field(init=False)
    network: VirtualNetwork = field(init=False)
    watcher: EventCounter = field(init=False)
    peers: list[VirtualPeer] = field(init=False)
    traps: dict[PeerId, Callable[[Action], bool]] = field(default_factory=dict)  # the peer dies at such an action
    outcasts: set[PeerId] = field(default_factory=set)  # hostile peers, not started again once dead
    listener: Callable[[VirtualPeer, Action], None] | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        signers, verifier = make_signers(len(self.rates), self.seed, self.real_keys)
        founders = [signers[number].peer_id for number in self.founders]
        self.manifest = (
            make_manifest(self.pace, founders, self.seed, self.trust, self.admission)
            if self.setting is None
            else self.setting.describe(founders)
        )
        make_tensors = make_virtual_tensors if self.setting is None else self.setting.make_tensors
        self.network = VirtualNetwork(self.clock, self.random, self.faults)
        self.watcher = Watcher(min_share=self.pace.min_share) if self.setting is None else EventCounter()
        directory: dict[PeerId, VirtualPeer] = {}
        world = Surroundings(
            self.manifest,
            self.clock,
            self.network,
            self.random,
            verifier,
            directory,
            self,
            make_tensors,
            self.chain_kept,
            self.carries,
        )
        self.peers = [
            VirtualPeer(world, signer, rate, contributes=number not in self.witnesses)
            for number, (signer, rate) in enumerate(zip(signers, self.rates, strict=True))
        ]
        directory.update({peer.me: peer for peer in self.peers})

    def run(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass."""
        until = self.clock.now + seconds
        while self.clock.step(until):
            pass

    def run_until_versions(self, versions: int, seconds_max: float) -> bool:
        """Run until `versions` versions, over all fragments, are certified; return False if time runs out first."""
        until = self.clock.now + seconds_max
        while self.versions() < versions:
            if not self.clock.step(until):
                return False
        return True

    def versions(self) -> int:
        """Return how many versions have been certified so far, over all fragments and branches."""
        return len(self.watcher.certified)

    def crash(self, peer: VirtualPeer) -> None:
        """End a peer's life; most of the others notice by their transport, some only by its silence."""
        peer.crash()
        for other in self.peers:
            if other.alive and self.random.random() < 0.7:
                self.clock.after(self.random.uniform(0.05, 1.0), partial(self._notice, other, peer))

    def _notice(self, other: VirtualPeer, peer: VirtualPeer) -> None:
        if other.alive and not peer.alive:
            other.handle(PeerGone(peer.me))

    # -- watching

    def acts(self, peer: VirtualPeer, action: Action) -> None:
        """Let the watcher judge a peer's next action, and spring the trap that is set for it."""
        trap = self.traps.get(peer.me)
        if trap is not None and trap(action):
            del self.traps[peer.me]
            self.crash(peer)
            return
        self.watcher.acts(peer, action)
        if self.listener is not None:
            self.listener(peer, action)

    def handled(self, peer: VirtualPeer) -> None:
        """Let the watcher look at a peer after an event."""
        self.watcher.handled(peer)

    def digest(self) -> bytes:
        """Return a digest of the world's state: equal only if every peer did the same at the same time.

        It covers the state of the random generator, which depends on every message, delay and fault.
        """
        heads = [None if peer.engine is None else peer.engine.heads() for peer in self.peers]
        states = [tuple(peer.tensors.states) if peer.life else () for peer in self.peers]
        told, certified = sorted(self.watcher.told.items()), list(self.watcher.certified)
        end = (self.clock.now, self.network.sent, self.random.getstate(), heads, states, told, certified)
        return digest_of(b"world", repr(end).encode())

    # -- the end

    def endure(self, seconds_max: float, versions: int) -> None:
        """End the faults while hostile peers still act: versions must advance, `versions` per fragment on average.

        (3) If fewer than a third of every active set are hostile, its honest peers suffice for a full version. Then
        this raises InvariantError if versions do not advance. More hostile peers may have got into an active set while
        faults kept others away; by joining without voting these can void every attempt. So can hostile learners that
        join without committing, if they are a third of all learners. Both cases are excused.
        """
        self._heal(self.peers)
        before, excused = self.versions(), self._are_outvoted() or self._are_outnumbered_in_training()
        if self.run_until_versions(before + versions * self.pace.fragments, seconds_max) or excused:
            return
        raise InvariantError(f"no progress under attack: {before} versions, then {self.versions()}")

    def _are_outvoted(self) -> bool:
        """Whether the honest peers of an active set, as one of them knows it, are too few for a full version.

        They need its share of the active set, and enough votes in a group of the whole set.
        """
        engines = [peer.engine for peer in self.peers if peer.engine is not None and peer.me not in self.outcasts]
        active = [machine.chain.active_set() for engine in engines for machine in engine.machines]
        return any(not self._suffice(len(one - self.outcasts), len(one)) for one in active)

    def _suffice(self, honest: int, active: int) -> bool:
        return honest >= votes_needed(active) and more_than_share(honest, active, self.pace.min_share)

    def _are_outnumbered_in_training(self) -> bool:
        """Whether the honest learners are too few for an input set of all learners (docs/adr/0038).

        Hostile peers that are fewer than a third of all peers may be a third of the learners, if some peer only votes.
        By silence they can stop a run. With any other behaviour versions mostly come, so `endure` waits all the same.
        """
        trainers = [peer for peer in self.peers if peer.contributes]
        honest = sum(peer.me not in self.outcasts for peer in trainers)
        return honest < inputs_needed(len(trainers))

    def _heal(self, peers: Sequence[VirtualPeer]) -> None:
        """Remove all traps and network faults, and start these peers if they are dead."""
        self.traps.clear()
        self.network.heal()
        for peer in peers:
            if not peer.alive:
                peer.start()

    def settle(self, seconds_max: float, versions_min: int = 0) -> None:
        """End the faults, start dead peers, and wait until versions advance and peers agree again.

        (3) While all peers are honest and connected, versions must advance: raises InvariantError if they do not.
        """
        self._heal([peer for peer in self.peers if peer.me not in self.outcasts])
        before = self.versions()
        if not self.run_until_versions(max(before + 2 * self.pace.fragments, versions_min), seconds_max):
            raise InvariantError(f"no progress after healing: {before} versions, then {self.versions()}")
        self.quiesce(seconds_max)

    def quiesce(self, seconds_max: float) -> None:
        """Drain the world, then judge its end."""
        self.drain(seconds_max)
        check_converged(self.peers)
        if isinstance(self.watcher, Watcher):
            check_work(self.peers, self.watcher)
            check_messages(self.peers, self.network.sent, self.versions() + self.watcher.told["round_void"])

    def drain(self, seconds_max: float) -> bool:
        """Open no further rounds and wait for those in flight; return False if they do not end in time."""
        for peer in self.peers:
            if peer.engine is not None:
                peer.engine.drain()
        until = self.clock.now + seconds_max
        while self.clock.now < until:
            self.run(self.pace.presence_seconds)
            if self._at_rest():
                return True
        return False

    def _at_rest(self) -> bool:
        live = [peer.engine for peer in self.peers if peer.engine is not None]
        heads = {engine.heads() for engine in live}
        return len(heads) == 1 and all(
            machine.ready and not machine.busy for engine in live for machine in engine.machines
        )
