"""The tensor port of virtual peers, and the simulator's implementation: digests, hashing, a step counter.

`muster lab` has real tensors behind the port (`peer.lab.tensors`). All guarantees that these give the protocol hold
here, too: equal inputs give equal bytes, another order or set of inputs gives others, and nobody can guess them.
Discarded data is gone, so a core that discards too early fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from coordinator.core.actions import (
    Adopt,
    Apply,
    Encode,
    Included,
    IncludedUnseen,
    Inspect,
    NotIncluded,
    Open,
    Reduce,
    Returned,
    RoundKey,
)
from coordinator.core.events import Applied, Encoded, Finding, Inspected, Opened, Reduced
from coordinator.run.manifest import OuterSpec
from coordinator.trust.evidence import OpenedLeaf, ProofChecker
from coordinator.wire.inputs import Committed, ReduceInput
from coordinator.wire.merkle import leaf_digest
from coordinator.wire.messages import Result
from coordinator.wire.openings import OpenedInput, OpeningNote, Refutation
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import digest_of

GARBAGE = b"not finite"


def garbage_root(partition: int) -> bytes:
    """Return the root of a part with one leaf that does not decode."""
    return leaf_digest(GARBAGE + bytes([partition]))


class VirtualProofChecker:
    """A judge of virtual garbage and virtual merging (`coordinator.trust.evidence.ProofChecker`)."""

    codec = OuterSpec().contribution_codec

    def leaves(self, part: tuple[int, int, int]) -> int:
        return 1

    def is_garbage(self, part: tuple[int, int, int], index: int, piece: bytes) -> bool:
        return piece == GARBAGE + bytes([part[2]])

    def is_false(self, fragment: int, result: Result, committed: Committed, shown: Refutation) -> bool:
        inputs = committed.partition(result.partition, result.included)
        if shown.inputs != tuple(map(opened_input, inputs)):
            raise PeerError("leaves that nobody committed")
        return merged_root(result.partition, inputs) != result.root


Work = tuple[int, int, int]
"""A range of inner steps: the life that made them, the first, and the one after the last."""


@dataclass(slots=True)
class VirtualLearner:
    """Inner steps at a constant rate: a pure function of time, so a learner cannot wait for the network.

    `counted` has, per fragment, the number of steps that versions hold already. `births` has (first step, life) for
    each life, as after a crash a new life repeats the steps since the checkpoint.
    """

    peer: PeerId
    steps_per_second: float
    tokens_per_step: int
    started: float
    steps_before: float  # steps of earlier lives, kept by the checkpoint
    counted: list[int]
    births: list[tuple[int, int]]

    def steps(self, now: float) -> int:
        """Return the inner steps so far, without those lost in crashes."""
        return int(self.steps_before + (now - self.started) * self.steps_per_second)

    def boundary_in(self, now: float) -> float:
        """Return the seconds until the current step ends; 0 at rest."""
        made = self.steps_before + (now - self.started) * self.steps_per_second
        return (math.floor(made) + 1 - made) / self.steps_per_second if self.steps_per_second > 0 else 0.0

    def made_at(self, step: int) -> float:
        """Return when the given number of steps is reached."""
        return self.started + (step - self.steps_before) / self.steps_per_second

    def rest(self, now: float) -> None:
        """Stop making steps."""
        self.steps_before, self.started, self.steps_per_second = float(self.steps(now)), now, 0.0

    def work(self, first: int, count: int) -> list[Work]:
        """Return the steps first…first+count-1, split by the life that made them."""
        pieces: list[Work] = []
        ends = [start for start, _ in self.births[1:]] + [first + count]
        for (start, life), end in zip(self.births, ends, strict=True):
            low, high = max(start, first), min(end, first + count)
            if low < high:
                pieces.append((life, low, high))
        return pieces


class Tensors(Protocol):
    """The port to the owner of a virtual peer's tensors. `now` is virtual time."""

    learner: VirtualLearner
    states: list[bytes]  # current state digest per fragment
    snapshots: dict[RoundKey, int]  # step count at each snapshot
    applied: dict[RoundKey, bytes]  # state digests

    @property
    def proof_checker(self) -> ProofChecker:
        """The judge of garbage and false results."""
        ...

    def snapshot_in(self, action: Encode, now: float, draw: Callable[[float, float], float]) -> float:
        """Return the seconds until the snapshot can be taken; `draw` is the world's uniform random number."""
        ...

    def encode(self, action: Encode, now: float) -> Encoded | None:
        """Take the snapshot and encode it; None if there is nothing to contribute."""
        ...

    def reduce(self, action: Reduce) -> Reduced:
        """Merge one partition."""
        ...

    def open(self, action: Open) -> Opened:
        """Open leaves of inputs."""
        ...

    def inspect(self, action: Inspect) -> Inspected:
        """Recompute leaves of a result."""
        ...

    def apply(self, action: Apply) -> Applied | None:
        """Take the outer step on the side; None if that is not possible."""
        ...

    def adopt(self, action: Adopt, now: float) -> None:
        """Move to a certified state."""
        ...

    def discard(self, key: RoundKey) -> None:
        """Forget a round."""
        ...

    def save(self, now: float) -> object:
        """Return the data to keep in a checkpoint beside the digests; None if there is none."""
        ...

    def garbled(self, encoded: Encoded) -> Encoded:
        """Return the same commitment, but to parts that do not decode, for a hostile peer."""
        ...

    def falsified(self, action: Reduce, reduced: Reduced) -> Reduced:
        """Return a result that does not follow from the inputs of `action`, for a hostile peer."""
        ...


def merged_root(partition: int, inputs: Sequence[ReduceInput]) -> bytes:
    """Return the root that an honest reducer gets from these inputs."""
    return digest_of(b"result", bytes([partition]), *(one.root + str(one.weight).encode() for one in inputs))


def opened_input(one: ReduceInput) -> OpenedInput:
    """Return the only leaf of a part, which follows from its root."""
    return OpenedInput(member=one.member, pieces=(digest_of(b"leaf", one.root),), siblings=())


@dataclass(slots=True)
class VirtualTensors:
    """The tensors of one peer as digests: its states, and the snapshots, parts and applied states of its rounds."""

    learner: VirtualLearner
    states: list[bytes]  # current state digest per fragment
    snapshots: dict[RoundKey, int] = field(default_factory=dict)
    applied: dict[RoundKey, bytes] = field(default_factory=dict)
    parts: dict[RoundKey, tuple[bytes, ...]] = field(default_factory=dict)  # roots of our contributed parts
    proof_checker: ProofChecker = field(default_factory=VirtualProofChecker)

    def snapshot_in(self, action: Encode, now: float, draw: Callable[[float, float], float]) -> float:
        """Draw the seconds to the next step boundary; merged work does not wait for one."""
        return draw(0, 1 / self.learner.steps_per_second) if action.merged is None else draw(0.001, 0.02)

    def encode(self, action: Encode, now: float) -> Encoded | None:
        """Take a snapshot and encode it; None if no step was made since the last counted snapshot."""
        learner, fragment = self.learner, action.key.fragment
        if action.merged is not None:
            return self._encode_merged(action, action.merged)
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
        self.parts[action.key] = roots
        tokens = steps * learner.tokens_per_step
        norms = (1.0,) * action.partitions
        return Encoded(action.key, tokens, steps, max(learner.counted[fragment], 0), steps, roots, norms)

    def _encode_merged(self, action: Encode, merged: Apply) -> Encoded:
        """Encode the merged work of our cell in parts for the group above."""
        results = [b"" if result is None else result.root for result in merged.results]
        roots = tuple(digest_of(b"part", action.key.roster_id, bytes([j]), *results) for j in range(action.partitions))
        self.parts[action.key] = roots
        return Encoded(action.key, 0, 0, 0, 0, roots, (1.0,) * action.partitions)

    def reduce(self, action: Reduce) -> Reduced:
        """Merge: a digest over the inputs in order, with their weights; leave garbage out and prove it."""
        spoilt = garbage_root(action.partition)
        good = tuple(one for one in action.inputs if one.root != spoilt)
        piece = GARBAGE + bytes([action.partition])
        leaf = OpenedLeaf(partition=action.partition, index=0, piece=piece, path=())
        shown = tuple((one.member, leaf) for one in action.inputs if one.root == spoilt)
        if len(good) < action.inputs_min:
            return Reduced(action.key, action.partition, action.turn, None, (), garbage=shown)
        included = tuple(one.member for one in good)
        root = merged_root(action.partition, action.weighed(included))
        return Reduced(action.key, action.partition, action.turn, root, included, (), (1.0,), 0.0, shown)

    def open(self, action: Open) -> Opened:
        """Open the only leaf of each part, which follows from its root."""
        inputs = tuple(opened_input(one) for one in action.inputs)
        place = (action.key.roster_id, action.partition, action.turn)
        note = OpeningNote(group=place[0], partition=place[1], turn=place[2], seed=action.seed, inputs=inputs)
        return Opened(action.key, action.to, note)

    def inspect(self, action: Inspect) -> Inspected:
        """Merge again and compare. Honest virtual results have no coefficients, so one with some is doubtful."""
        own = self.parts.get(action.key, ())
        shown = {one.member: one for one in action.opened}
        shown.update({one.member: opened_input(one) for one in action.inputs if one.root in own})
        opened = tuple(opened_input(one) for one in action.inputs)
        if not action.whole and any(shown.get(one.member) != one for one in opened):
            finding = Finding.UNOPENED
        elif merged_root(action.partition, action.inputs) != action.root:
            finding = Finding.REFUTED
        else:
            finding = Finding.DOUBTFUL if action.coefficients else Finding.CONFIRMED
        proof = None
        if finding is Finding.REFUTED:
            proof = Refutation(
                partition=action.partition,
                turn=action.turn,
                result=action.result,
                leaf=0,
                inputs=opened,
                piece=b"",
                siblings=(),
            )
        place = (action.accuser, action.partition, action.turn, action.result)
        return Inspected(action.key, *place, finding, proof, action.whole)

    def apply(self, action: Apply) -> Applied | None:
        """Take the outer step on the side: a digest over the current state and the results."""
        roots = [b"" if result is None else result.root for result in action.results]
        self.applied[action.key] = digest_of(b"state", self.states[action.key.fragment], *roots)
        return Applied(action.key, self.applied[action.key])

    def adopt(self, action: Adopt, now: float) -> None:
        """Move to the certified state; steps of an included snapshot count from now on.

        If a version holds work of ours without a snapshot here, all steps until now count: they must not go into a
        second version.
        """
        fragment = action.certificate.fragment
        state = action.certificate.state if action.applied is None else self.applied[action.applied]
        self.states[fragment] = state
        match action.ours:
            case Included(snapshot=snapshot):
                self.learner.counted[fragment] = self.snapshots[snapshot]
            case IncludedUnseen():
                self.learner.counted[fragment] = self.learner.steps(now)
            case Returned(steps=steps):
                self.learner.counted[fragment] -= steps
            case NotIncluded():
                pass

    def discard(self, key: RoundKey) -> None:
        """Forget a round that is over."""
        for kept in (self.snapshots, self.applied, self.parts):
            kept.pop(key, None)

    def save(self, now: float) -> object:
        """Return None: there is nothing but the digests."""
        return None

    def garbled(self, encoded: Encoded) -> Encoded:
        """Return the commitment with parts of one garbage leaf each."""
        return replace(encoded, part_roots=tuple(map(garbage_root, range(len(encoded.part_roots)))))

    def falsified(self, action: Reduce, reduced: Reduced) -> Reduced:
        """Return the result with a digest that no inputs give."""
        return replace(reduced, root=digest_of(b"cheated", reduced.root or b""))
