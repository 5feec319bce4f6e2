"""The tensor port of virtual peers, and what the simulator has behind it: digests, hashing, a step counter.

`muster lab` has real tensors there (`peer.lab.tensors`). Whatever they guarantee to the protocol holds here too: equal
inputs give equal bytes, another order or another set of inputs gives others, and nothing can be guessed. What the core
has discarded is gone, so that a core which discards too early fails.
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
    """The root of a part of one leaf that decodes to nothing."""
    return leaf_digest(GARBAGE + bytes([partition]))


class VirtualProofChecker:
    """Decides about virtual garbage and virtual merging (`coordinator.trust.evidence.ProofChecker`)."""

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

    def boundary_in(self, now: float) -> float:
        """Seconds until the step under way is made; 0 at rest."""
        made = self.steps_before + (now - self.started) * self.steps_per_second
        return (math.floor(made) + 1 - made) / self.steps_per_second if self.steps_per_second > 0 else 0.0

    def made_at(self, step: int) -> float:
        """When this many steps are made."""
        return self.started + (step - self.steps_before) / self.steps_per_second

    def rest(self, now: float) -> None:
        """Make no steps from now on."""
        self.steps_before, self.started, self.steps_per_second = float(self.steps(now)), now, 0.0

    def work(self, first: int, count: int) -> list[Work]:
        """Steps first…first+count-1 by the life that made them."""
        pieces: list[Work] = []
        ends = [start for start, _ in self.births[1:]] + [first + count]
        for (start, life), end in zip(self.births, ends, strict=True):
            low, high = max(start, first), min(end, first + count)
            if low < high:
                pieces.append((life, low, high))
        return pieces


class Tensors(Protocol):
    """What a virtual peer asks of the owner of its tensors. `now` is virtual time."""

    learner: VirtualLearner
    states: list[bytes]  # current state digest per fragment
    snapshots: dict[RoundKey, int]  # steps made by then
    applied: dict[RoundKey, bytes]  # state digests

    @property
    def proof_checker(self) -> ProofChecker:
        """Who tells what is garbage, and what a false result."""
        ...

    def snapshot_in(self, action: Encode, now: float, draw: Callable[[float, float], float]) -> float:
        """Seconds until the snapshot can be taken; `draw` is the world's uniform random number."""
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
        """Take the outer step on the side; None if that cannot be done."""
        ...

    def adopt(self, action: Adopt, now: float) -> None:
        """Move to a certified state."""
        ...

    def discard(self, key: RoundKey) -> None:
        """Forget a round."""
        ...

    def save(self, now: float) -> object:
        """What a checkpoint of this moment holds beside the digests; None if nothing."""
        ...

    def garbled(self, encoded: Encoded) -> Encoded:
        """The same commitment, to parts that decode to nothing: what a hostile peer makes of it."""
        ...

    def falsified(self, action: Reduce, reduced: Reduced) -> Reduced:
        """Another result than the inputs of `action` give, which was merged: what a hostile peer makes of it."""
        ...


def merged_root(partition: int, inputs: Sequence[ReduceInput]) -> bytes:
    """What an honest reducer makes of these inputs."""
    return digest_of(b"result", bytes([partition]), *(one.root + str(one.weight).encode() for one in inputs))


def opened_input(one: ReduceInput) -> OpenedInput:
    """The one leaf of a part, which follows from its root."""
    return OpenedInput(member=one.member, pieces=(digest_of(b"leaf", one.root),), siblings=())


@dataclass(slots=True)
class VirtualTensors:
    """Anchors of one peer as digests, the snapshots of its rounds, and the states that it gives to others."""

    learner: VirtualLearner
    states: list[bytes]  # current state digest per fragment
    snapshots: dict[RoundKey, int] = field(default_factory=dict)
    applied: dict[RoundKey, bytes] = field(default_factory=dict)
    parts: dict[RoundKey, tuple[bytes, ...]] = field(default_factory=dict)  # roots of what we contributed
    proof_checker: ProofChecker = field(default_factory=VirtualProofChecker)

    def snapshot_in(self, action: Encode, now: float, draw: Callable[[float, float], float]) -> float:
        """At the next step boundary; what is merged already waits for none."""
        return draw(0, 1 / self.learner.steps_per_second) if action.merged is None else draw(0.001, 0.02)

    def encode(self, action: Encode, now: float) -> Encoded | None:
        """Snapshot and encode; nothing where no step was made since the last counted snapshot."""
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
        """What a cell of ours has come to, in the parts of the group above."""
        results = [b"" if result is None else result.root for result in merged.results]
        roots = tuple(digest_of(b"part", action.key.roster_id, bytes([j]), *results) for j in range(action.partitions))
        self.parts[action.key] = roots
        return Encoded(action.key, 0, 0, 0, 0, roots, (1.0,) * action.partitions)

    def reduce(self, action: Reduce) -> Reduced:
        """Merge: a digest over the inputs in order, with their weights. Garbage is left out, and shown."""
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
        """A part has one leaf, which follows from its root."""
        inputs = tuple(opened_input(one) for one in action.inputs)
        place = (action.key.roster_id, action.partition, action.turn)
        note = OpeningNote(group=place[0], partition=place[1], turn=place[2], seed=action.seed, inputs=inputs)
        return Opened(action.key, action.to, note)

    def inspect(self, action: Inspect) -> Inspected:
        """Merge again. Rules whose coefficients could be doubted have none here, so a result with some is doubtful."""
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
        """A round is over."""
        for kept in (self.snapshots, self.applied, self.parts):
            kept.pop(key, None)

    def save(self, now: float) -> object:
        """Digests are all there is."""
        return None

    def garbled(self, encoded: Encoded) -> Encoded:
        """Parts of one leaf that is garbage."""
        return replace(encoded, part_roots=tuple(map(garbage_root, range(len(encoded.part_roots)))))

    def falsified(self, action: Reduce, reduced: Reduced) -> Reduced:
        """A digest that nothing leads to."""
        return replace(reduced, root=digest_of(b"cheated", reduced.root or b""))
