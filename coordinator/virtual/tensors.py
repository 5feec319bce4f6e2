"""The tensor port of the simulator: states are digests, arithmetic is hashing, a learner is a step counter.

Whatever the real tensors guarantee to the protocol holds here too: equal inputs give equal bytes, another order or
another set of inputs gives others, and nothing can be guessed. What the core has discarded is gone, so that a core
which discards too early fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.actions import Adopt, Apply, Encode, Reduce, RoundKey
from coordinator.events import Applied, Encoded, Reduced
from dht.identity import PeerId
from dht.statement import digest_of

Work = tuple[int, int, int]
"""Inner steps that were made once: the life that made them, the first, and the one after the last."""


@dataclass(slots=True)
class VirtualLearner:
    """Inner steps at a constant rate: a pure function of time, so nothing in here could wait for a network.

    `counted` holds, per fragment, the steps that are in some version already. `births` says in which life which steps
    were made: (first step, life), because after a crash the steps since the checkpoint are made anew.
    """

    peer: PeerId
    steps_per_second: float
    tokens_per_step: int
    started: float
    steps_before: float  # of earlier lives, kept by the checkpoint
    counted: list[int]
    births: list[tuple[int, int]]

    def steps(self, now: float) -> int:
        """Inner steps so far, without those that crashes undid."""
        return int(self.steps_before + (now - self.started) * self.steps_per_second)

    def work(self, first: int, count: int) -> list[Work]:
        """Steps first…first+count-1 by the life that made them."""
        pieces: list[Work] = []
        ends = [start for start, _ in self.births[1:]] + [first + count]
        for (start, life), end in zip(self.births, ends, strict=True):
            low, high = max(start, first), min(end, first + count)
            if low < high:
                pieces.append((life, low, high))
        return pieces


@dataclass(slots=True)
class VirtualTensors:
    """Anchors of one peer as digests, the snapshots of its rounds, and the states that it gives to others."""

    learner: VirtualLearner
    states: list[bytes]  # current state digest per fragment
    snapshots: dict[RoundKey, int] = field(default_factory=dict)
    applied: dict[RoundKey, bytes] = field(default_factory=dict)

    def encode(self, action: Encode, now: float) -> Encoded | None:
        """Snapshot and encode; nothing where no step was made since the last counted snapshot."""
        learner, fragment = self.learner, action.key.fragment
        steps_now = learner.steps(now)
        steps = steps_now - learner.counted[fragment]
        if steps == 0:
            return None
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
        """Merge: a digest over the inputs in order, with their weights."""
        parts = [one.root + str(one.weight).encode() for one in action.inputs]
        root = digest_of(b"result", bytes([action.partition]), *parts)
        included = tuple(one.member for one in action.inputs)
        return Reduced(action.key, action.partition, action.turn, root, included, (), (1.0,), 0.0)

    def apply(self, action: Apply) -> Applied:
        """The outer step on the side: a digest over the current state and the results."""
        roots = [b"" if result is None else result.root for result in action.results]
        self.applied[action.key] = digest_of(b"state", self.states[action.key.fragment], *roots)
        return Applied(action.key, self.applied[action.key])

    def adopt(self, action: Adopt, now: float) -> None:
        """Move to the certified state; steps of an included snapshot count from now on.

        A version with work of ours of which there is no snapshot any more overwrites what we did since: it must not
        go into a second version.
        """
        fragment = action.certificate.fragment
        state = action.certificate.state if action.applied is None else self.applied[action.applied]
        self.states[fragment] = state
        if action.snapshot is not None:
            self.learner.counted[fragment] = self.snapshots[action.snapshot]
        elif any(action.counted):
            self.learner.counted[fragment] = self.learner.steps(now)

    def discard(self, key: RoundKey) -> None:
        """A round is over."""
        self.snapshots.pop(key, None)
        self.applied.pop(key, None)
