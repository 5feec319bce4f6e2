"""The shared context of all learners of a lab: threads, bytes and states by their digests, sums, and the tape."""

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

BLOB_ROUNDS = 2  # of bytes kept, per round in flight: every contribution and the result
BLOB_BYTES_MIN = 64 << 20
STATES_KEPT = 16  # newest states per fragment that a late peer can still get


class LabPeer(Protocol):
    """One life of one peer of the lab, as other peers see it (`peer.lab.tensors.LabTensors`)."""

    learner: VirtualLearner
    lazy: LazyLearner
    attack: Attack | None
    anchors: Anchors
    states: list[bytes]

    @property
    def versions(self) -> int: ...


@dataclass
class LabContext:
    """State shared by all peers of one lab. Digests name bytes and states, so sharing them changes nothing."""

    config: RunConfig
    learners: int
    batches: Callable[[PeerId], Batches]
    pool: Executor
    step_seconds: float
    delay_steps: float
    record: Record
    device: str = "cpu"
    values: Named | None = None  # of version 0, unless they are seeded
    jitter: float = 0.0  # of the lengths of learners' steps
    compiles: bool = False  # whether learners' models are compiled, until the compiler fails
    compiling: str = ""  # the result of compiling, in words
    attacks: dict[PeerId, AttackChoice] = field(default_factory=dict)
    placements: dict[PeerId, Placement] = field(default_factory=dict)  # where it differs from the lab's
    founders: frozenset[PeerId] = frozenset()  # set once the run has a manifest
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
        self.worker = ThreadPoolExecutor(1)  # for work that `TensorWorker` does beside an event loop; idle here

    def compile(self, learner: Learner) -> None:
        """Have torch compile the learner's steps; if that fails, compile for no learner from now on."""
        found = compile_steps(learner)
        self.compiles = learner.placement.compiled
        if not (self.compiling and self.compiles):
            self.compiling = found

    def keep(self, fragment: int, digest: bytes, state: OuterState) -> None:
        """Keep a state for all other peers that adopt it, or fetch it because they are late."""
        known = self.states[fragment]
        known.setdefault(digest, state)
        while len(known) > STATES_KEPT:
            known.popitem(last=False)

    def retire(self, peer: PeerId, now: float) -> None:
        """End a life; its work so far counts."""
        one = self.active.pop(peer, None)
        if one is not None:
            self.record({"event": "end", "peer": peer, "step": one.learner.steps(now)})
            one.lazy.advance(one.learner.steps(now))
            one.lazy.settle()

    def is_believed(self, peer: PeerId) -> bool:
        """Whether this peer keeps to the protocol; otherwise its states may be on a branch of its own."""
        choice = self.attacks.get(peer)
        return choice is None or not is_lab_attack(choice.name)

    def honest_steps(self, now: float) -> dict[PeerId, int]:
        """Return the steps made by `now` by each peer that contributes its true work."""
        return {peer: one.learner.steps(now) for peer, one in self.active.items() if one.attack is None}

    def record_version(self, certificate: Certificate) -> None:
        """Record each version once: its contributors, with their counters."""
        if certificate.digest in self._recorded:
            return
        self._recorded.add(certificate.digest)
        self.record(version_line(certificate))

    def end_tape(self) -> None:
        """Record the final parameters of every live peer, once all steps are made."""
        for peer, one in self.active.items():
            self.record({"event": "final", "peer": peer, "step": one.lazy.steps, "parameters": one.lazy.digest().hex()})

    def advance_all(self, now: float) -> None:
        """Begin the steps of all live peers up to now, so that all cores are busy."""
        for one in self.active.values():
            one.lazy.advance(one.learner.steps(now))

    def settle_all(self, now: float) -> None:
        """Make the steps of all live peers up to now, and wait for them."""
        self.advance_all(now)
        for one in self.active.values():
            one.lazy.settle()
