"""What all learners of a lab share: threads, bytes and states by their digests, sums, and the tape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.chain.certificate import Certificate
from coordinator.run.manifest import RunConfig
from coordinator.simulator.tensors import VirtualLearner
from dht.identity import PeerId
from peer.attacks.attack import Attack
from peer.attacks.protocol import is_lab_attack
from peer.attacks.zoo import AttackChoice
from peer.lab.learners import LazyLearner, Tally
from peer.learner.devices import Placement
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.learner import Learner
from peer.learner.setup import compile_steps
from peer.model.description import Named
from peer.numerics.outer_optimizer import OuterState
from peer.rounds.tape import Record, version_line
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.blobs import BlobStore

BLOB_ROUNDS = 2  # rounds whose bytes are kept, per round in flight: every contribution and the result
BLOB_BYTES_MIN = 64 << 20
STATES_KEPT = 16  # newest states per fragment that a peer which is behind can still get


class LabPeer(Protocol):
    """One life of one peer of the lab, as the others see it (`peer.lab.tensors.LabTensors`)."""

    learner: VirtualLearner
    lazy: LazyLearner
    attack: Attack | None
    anchors: Anchors
    states: list[bytes]

    @property
    def versions(self) -> int: ...


@dataclass
class LabContext:
    """What all peers of one lab share. Bytes and states are named by their digests, so sharing them changes nothing."""

    config: RunConfig
    learners: int
    batches: Callable[[PeerId], Batches]
    pool: Executor
    step_seconds: float
    delay_steps: float
    record: Record
    device: str = "cpu"
    values: Named | None = None  # of version 0, unless they are seeded
    jitter: float = 0.0  # of the length of learners' steps
    compiles: bool = False  # learners' models, until the compiler fails
    compiling: str = ""  # what came of that, in words
    attacks: dict[PeerId, AttackChoice] = field(default_factory=dict)
    placements: dict[PeerId, Placement] = field(default_factory=dict)  # where it is not the lab's
    founders: frozenset[PeerId] = frozenset()  # as soon as the run has a manifest
    tally: Tally = field(default_factory=Tally)
    delays_steps: list[int] = field(default_factory=list)
    active: dict[PeerId, LabPeer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layouts = layouts_of(self.config)
        self.genesis = genesis_states(self.config, self.values)
        largest_bytes = 4 * max(layout.elements for layout in self.layouts)
        rounds = BLOB_ROUNDS * self.config.pace.overlap
        self.blobs = BlobStore(max(BLOB_BYTES_MIN, rounds * (self.learners + 1) * largest_bytes))
        self.states: list[OrderedDict[bytes, OuterState]] = [OrderedDict() for _ in self.layouts]
        self._recorded: set[bytes] = set()
        self.worker = ThreadPoolExecutor(1)  # what `TensorWorker` would do beside an event loop; here it stays idle

    def compile(self, learner: Learner) -> None:
        """Have torch compile its steps; if it cannot, those of nobody from now on."""
        found = compile_steps(learner)
        self.compiles = learner.placement.compiled
        if not (self.compiling and self.compiles):
            self.compiling = found

    def keep(self, fragment: int, digest: bytes, state: OuterState) -> None:
        """Remember a state for all others that adopt it, or fetch it because they are behind."""
        known = self.states[fragment]
        known.setdefault(digest, state)
        while len(known) > STATES_KEPT:
            known.popitem(last=False)

    def retire(self, peer: PeerId, now: float) -> None:
        """A life ends: what it did counts as done."""
        one = self.active.pop(peer, None)
        if one is not None:
            self.record({"event": "end", "peer": peer, "step": one.learner.steps(now)})
            one.lazy.bring(one.learner.steps(now))
            one.lazy.settle()

    def is_believed(self, peer: PeerId) -> bool:
        """Whether it keeps to the protocol, else what it holds may be a branch of its own."""
        choice = self.attacks.get(peer)
        return choice is None or not is_lab_attack(choice.name)

    def honest_steps(self, now: float) -> dict[PeerId, int]:
        """Steps made by now by everybody who contributes what it did."""
        return {peer: one.learner.steps(now) for peer, one in self.active.items() if one.attack is None}

    def record_version(self, certificate: Certificate) -> None:
        """Once per version: who went into it, with which counters."""
        if certificate.digest in self._recorded:
            return
        self._recorded.add(certificate.digest)
        self.record(version_line(certificate))

    def end_tape(self) -> None:
        """What everybody who is there ends with; all steps are made."""
        for peer, one in self.active.items():
            self.record({"event": "final", "peer": peer, "step": one.lazy.steps, "parameters": one.lazy.digest().hex()})

    def bring_all(self, now: float) -> None:
        """Begin the steps of everybody up to now, so that all cores have something to do."""
        for one in self.active.values():
            one.lazy.bring(one.learner.steps(now))

    def settle_all(self, now: float) -> None:
        """Have everybody's steps made up to now."""
        self.bring_all(now)
        for one in self.active.values():
            one.lazy.settle()
