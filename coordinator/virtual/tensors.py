"""The tensor port of the simulator: states are digests, arithmetic is hashing, a learner is a step counter.

Whatever the real tensors guarantee to the protocol holds here too: equal inputs give equal bytes, another order or
another set of inputs gives others, and nothing can be guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.actions import Adopt, Apply, Encode, Reduce, RoundKey
from coordinator.events import Applied, Encoded, Reduced
from dht.identity import PeerId
from dht.statement import digest_of


@dataclass(slots=True)
class VirtualLearner:
    """Inner steps at a constant rate; per fragment, the steps that already count in some version."""

    peer: PeerId
    steps_per_second: float
    tokens_per_step: int
    fragments: int
    started: float
    steps_before: float = 0.0  # of earlier lives, kept by the checkpoint
    counted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counted = self.counted or [0] * self.fragments

    def steps(self, now: float) -> int:
        return int(self.steps_before + (now - self.started) * self.steps_per_second)


@dataclass(slots=True)
class VirtualTensors:
    """Anchors of one peer as digests, and the snapshots of its rounds."""

    learner: VirtualLearner
    states: list[bytes]  # current state digest per fragment
    snapshots: dict[RoundKey, int] = field(default_factory=dict)

    def encode(self, action: Encode, now: float) -> Encoded:
        learner, fragment = self.learner, action.key.fragment
        steps_now = learner.steps(now)
        steps = steps_now - learner.counted[fragment]
        self.snapshots[action.key] = steps_now
        stem = digest_of(
            b"contribution",
            learner.peer.encode(),
            action.key.roster_id,
            steps_now.to_bytes(8, "big"),
            self.states[fragment],
        )
        roots = tuple(digest_of(b"part", stem, bytes([j])) for j in range(action.partitions))
        tokens = steps * learner.tokens_per_step
        norms = (1.0,) * action.partitions
        return Encoded(action.key, tokens, steps, learner.counted[fragment], steps, roots, norms)

    def reduce(self, action: Reduce) -> Reduced:
        parts = [one.root + str(one.weight).encode() for one in action.inputs]
        root = digest_of(b"result", bytes([action.partition]), *parts)
        included = tuple(one.member for one in action.inputs)
        return Reduced(action.key, action.partition, action.turn, root, included, (), (1.0,), 0.0)

    def apply(self, action: Apply) -> Applied:
        roots = [b"" if result is None else result.root for result in action.results]
        return Applied(action.key, digest_of(b"state", self.states[action.key.fragment], *roots))

    def adopt(self, action: Adopt) -> None:
        """Move to the certified state; steps of an included snapshot count from now on."""
        fragment = action.certificate.fragment
        self.states[fragment] = action.certificate.state
        if action.snapshot is not None:
            self.learner.counted[fragment] = self.snapshots[action.snapshot]
