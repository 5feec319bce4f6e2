"""A simulated swarm and an observer of it: the real observation, fed by simulated peers in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.core.events import Received
from coordinator.run.manifest import PaceSpec
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.peer import VirtualPeer
from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import NetworkView
from coordinator.wire.messages import AskChainNote, AskEvidenceNote, Message
from dht.identity import Identity, PeerId
from dht.statement import digest_of
from peer.observer.chains import Chains
from peer.observer.peers import HeardPresence
from peer.observer.state import Observation, Question
from peer.observer.view import ban_view, run_facts
from peer.rounds.public_status import PublicStatus, encode_status
from tests.coordinator.tracing import TracedWorld

ME = Identity(digest_of(b"observer")).peer_id
UNIX = 1e9  # of virtual time 0, as the simulator's peers have it
PACE = PaceSpec(fragments=2, steps_per_version=8, quorum=2, min_group=2, round_seconds=8.0)


def world_of(count: int, pace: PaceSpec = PACE, seed: int = 3, real_keys: bool = False) -> TracedWorld:
    """Return a world of started peers; number 0 is the organiser."""
    links = LinkFaults(delay_min_seconds=0.005, delay_max_seconds=0.03)
    world = TracedWorld(pace, [2.0] * count, list(range(count)), seed, links, real_keys=real_keys)
    for peer in world.peers:
        peer.start()
    return world


@dataclass
class Observed:
    """A world, and the observation of an observer that looks every second."""

    world: TracedWorld
    observation: Observation = field(init=False)
    evaluations: dict[PeerId, tuple[Evaluation, ...]] = field(default_factory=dict)  # by the hosts that report them
    names: dict[PeerId, str] = field(default_factory=dict)
    cut: set[PeerId] = field(default_factory=set)  # neither read nor answering
    unix_offset_seconds: float = UNIX

    def __post_init__(self) -> None:
        shared = self.world.peers[0].world
        manifest, verifier = shared.manifest, shared.verifier
        chains = Chains(manifest, ME, verifier)
        chains.set_clock(self.unix_offset_seconds)
        self.observation = Observation(manifest, run_facts(manifest), chains)
        self.world.network.inboxes[ME] = self._hear
        self._said: dict[PeerId, tuple[float, HeardPresence]] = {}

    @property
    def now(self) -> float:
        return self.world.clock.now

    def run(self, seconds: int) -> NetworkView:
        """Let time pass, looking once a second; return the last view."""
        for _ in range(seconds):
            self.world.run(1.0)
            self.look()
        return self.view()

    def view(self) -> NetworkView:
        return self.observation.view(self.now)

    def sleep(self, seconds: float) -> None:
        """Suspend everybody's machine for so long: monotonic time stands still."""
        self.unix_offset_seconds += seconds
        for peer in self.world.peers:
            if peer.engine is not None:
                peer.engine.core.unix_offset_seconds += seconds

    def look(self) -> None:
        """Read presence records (those of dead peers until they expire), and ask the questions that are due."""
        pace = self.world.pace
        for peer in self.world.peers:
            due = self._said.get(peer.me, (-1e9, None))[0] + pace.presence_seconds
            if peer.alive and self.now >= due:
                presence = peer.presence(peer.tensors.learner.steps(self.now))
                name = self.names.get(peer.me, "")
                said = HeardPresence(
                    peer.me, presence.model_copy(update={"name": name}), self.unix_offset_seconds + self.now
                )
                self._said[peer.me] = (self.now, said)
        records = [
            said
            for peer, (at, said) in self._said.items()
            if self.now - at < pace.presence_lifetime_seconds and peer not in self.cut
        ]
        self.observation.chains.set_clock(self.unix_offset_seconds)
        self.observation.read(records, self.now)
        self._ask(self.observation.questions(self.now))

    def _ask(self, questions: Iterable[Question]) -> None:
        living = {peer.me: peer for peer in self.world.peers if peer.alive and peer.me not in self.cut}
        for to, question in questions:
            if to not in living:
                continue
            if isinstance(question, AskChainNote | AskEvidenceNote):
                living[to].handle(Received(ME, question))
            else:
                self.observation.hear(to, encode_status(self._status(living[to])), self.now)

    def _hear(self, sender: PeerId, message: Message, _: bytes | None) -> None:
        self.observation.hear(sender, message, self.now)
        self._ask(self.observation.chains.take_questions())

    def _status(self, peer: VirtualPeer) -> PublicStatus:
        assert peer.engine is not None
        told = self.evaluations.get(peer.me, ())
        return PublicStatus(
            role="host" if told else "learner",
            wall_seconds=self.now,
            evaluations=told,
            rounds=self.world.traces_of(peer).views(),
            bans=tuple(map(ban_view, peer.engine.core.bans.held.values())),
        )
