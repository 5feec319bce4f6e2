"""Rounds of one partition with real bytes and a reducer that may cheat, for tests and the benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from coordinator.core.actions import Inspect, Open, RoundKey
from coordinator.core.events import Finding, Inspected
from coordinator.wire.inputs import ReduceInput
from coordinator.wire.merkle import merkle_tree
from coordinator.wire.messages import COEFFICIENTS_MAX
from coordinator.wire.openings import OpenedInput, OpeningNote, seed_of
from dht.identity import PeerId
from dht.statement import digest_of
from peer.attacks.forgery import FORGERIES, Merged
from peer.numerics.codec import CODECS
from peer.numerics.fragments import FragmentLayout, Partitioning
from peer.numerics.leaves import Leaves
from peer.numerics.merge import MERGES, MergeRule
from peer.numerics.reduction import ReducedPartition, segment_inputs
from peer.rounds.spot_checks import SpotChecker
from peer.storage.blobs import BlobStore
from tests.peer.merging import Made, reduce_partition

KEY = RoundKey(0, 0, digest_of(b"roster"))
OTHERS = PeerId("others")


@dataclass
class Reduction:
    """The reduction of one partition in a round of `vectors` (float32, whole fragment), with all that a voter needs."""

    layout: FragmentLayout
    vectors: Sequence[Tensor]
    rule: MergeRule = field(default_factory=lambda: MERGES["robust_rda"])
    codecs: tuple[str, str] = ("int8", "int8")
    partitions: int = 0
    partition: int = 0
    weights: Sequence[float] = ()
    voters: int = 0  # how many check it: all members, unless this is a cell

    def __post_init__(self) -> None:
        self.partitions = self.partitions or len(self.vectors)
        self.voters = self.voters or len(self.vectors)
        self.cut = Partitioning.of(self.layout, self.partitions)
        self.contribution, self.result = (CODECS[name] for name in self.codecs)
        self.blobs = BlobStore(1 << 32)
        self.inspector = SpotChecker(lambda *_: self.cut, (self.contribution, self.result), self.rule, self.blobs)
        self.leaves = Leaves(self.cut.elements(self.partition), self.contribution, self.result)
        made = [Made.of(vector, self.cut, self.contribution) for vector in self.vectors]
        self.decoded = {member: one.decoded[self.cut.span(self.partition)] for member, one in enumerate(made)}
        self.inputs = tuple(
            ReduceInput(member, one.part_roots[self.partition], weight, one.squared_norms)
            for member, (one, weight) in enumerate(
                zip(made, self.weights or [1.0 + 0.05 * n for n in range(len(made))], strict=True)
            )
        )
        for one in made:
            self.blobs.add(one.parts[self.partition], self.contribution.leaf_bytes)

    # -- reducing

    def honest(self, included: Sequence[int] | None = None) -> ReducedPartition:
        chosen = range(len(self.inputs)) if included is None else included
        vectors = {member: self.decoded[member] for member in chosen}
        members = {one.member: one for one in self.inputs}
        merged = reduce_partition(vectors, members, self.rule, self.cut, self.partition, self.result)
        return self.kept(merged if len(merged.coefficients) <= COEFFICIENTS_MAX else replace(merged, coefficients=()))

    def kept(self, reduced: ReducedPartition) -> ReducedPartition:
        """Put its bytes into the store, and return it with the root that they have."""
        reduced = replace(reduced, tree=merkle_tree(reduced.data, self.result.leaf_bytes))
        self.blobs.put(reduced.data, reduced.tree)
        return reduced

    def with_coefficients(
        self, honest: ReducedPartition, change: Callable[[list[float]], Sequence[float]]
    ) -> ReducedPartition:
        """Return a result combined with other coefficients, which it publishes: its bytes are consistent."""
        merged = self._merged(honest).with_coefficients(lambda own: np.array(change(own.tolist())))
        return self.kept(replace(honest, data=merged.encoded(self.result), coefficients=merged.coefficients))

    def forged(self, honest: ReducedPartition, name: str, own: int) -> ReducedPartition:
        """Return the result as forged by one of FORGERIES, for a reducer that is this member."""
        merged = FORGERIES[name](self._merged(honest, honest.included.index(own)))
        return self.kept(replace(honest, data=merged.encoded(self.result), coefficients=merged.coefficients))

    def _merged(self, honest: ReducedPartition, own: int | None = None) -> Merged:
        inputs = [self.inputs[member] for member in honest.included]
        return Merged(
            self.rule.name,
            segment_inputs(inputs, self.rule, self.cut, self.partition),
            [self.decoded[member] for member in honest.included],
            honest.coefficients,
            self.result.decode(honest.data, self.leaves.elements),
            own,
        )

    def perturbed(self, honest: ReducedPartition, share: float, size: float, seed: int) -> ReducedPartition:
        """Return the result with noise of `size` × its own spread in this share of the leaves."""
        generator = np.random.default_rng(seed)
        touched = generator.choice(self.leaves.count, math.ceil(share * self.leaves.count), replace=False)
        values = self.result.decode(honest.data, self.leaves.elements).numpy()
        data, leaf_bytes = bytearray(honest.data), self.result.leaf_bytes
        for leaf in touched:
            own = values[self.leaves.window(int(leaf))]
            noise = generator.standard_normal(len(own)).astype(np.float32) * np.float32(size * max(own.std(), 1e-12))
            encoded = self.result.encode(torch.from_numpy(own + noise))
            data[int(leaf) * leaf_bytes : int(leaf) * leaf_bytes + len(encoded)] = encoded
        return self.kept(replace(honest, data=bytes(data)))

    # -- looking

    def look(self, reduced: ReducedPartition, voter: int, trial: int = 0) -> Inspected:
        """Return what a voter finds with the openings that the reducer made for it."""
        seed = seed_of(trial.to_bytes(8, "big") + voter.to_bytes(8, "big"), self.partition, 0)
        opened = self.opening(reduced, voter, seed)
        return self.inspector.inspect(self._inspect(reduced, opened.inputs, seed, None))

    def opening(self, reduced: ReducedPartition, voter: int, seed: bytes) -> OpeningNote:
        inputs = tuple(self.inputs[member] for member in reduced.included if member != voter)
        opened = self.inspector.open(
            Open(KEY, OTHERS, self.partition, self.partitions, 0, seed, self.voters, len(self.vectors), inputs)
        )
        assert opened.note is not None
        return opened.note

    def repeat(self, reduced: ReducedPartition, found: Inspected) -> Inspected:
        """Return what somebody else finds when checking a refutation."""
        assert found.refutation is not None
        shown = found.refutation
        return self.inspector.inspect(self._inspect(reduced, shown.inputs, b"", shown.leaf))

    def audit(self, reduced: ReducedPartition) -> Inspected:
        """Return what recomputing every leaf shows, with all inputs in the store."""
        return self.inspector.inspect(replace(self._inspect(reduced, (), b"", None), whole=True))

    def _inspect(
        self, reduced: ReducedPartition, opened: tuple[OpenedInput, ...], seed: bytes, leaf: int | None
    ) -> Inspect:
        return Inspect(
            key=KEY,
            accuser=OTHERS,
            partition=self.partition,
            partitions=self.partitions,
            turn=0,
            voters=self.voters,
            members=len(self.vectors),
            result=digest_of(b"result"),
            root=reduced.root,
            coefficients=reduced.coefficients,
            inputs=tuple(self.inputs[member] for member in reduced.included),
            opened=opened,
            seed=seed,
            leaf=leaf,
        )

    def findings(self, reduced: ReducedPartition, voters: Sequence[int], trial: int = 0) -> list[Finding]:
        return [self.look(reduced, voter, trial).finding for voter in voters]


def is_caught(findings: Sequence[Finding], voters: int, left_out: int = 0) -> bool:
    """Return whether the findings reject a result: one refutation, or doubts of more than a third of all voters.

    `left_out`: how many doubts a colluding leader leaves out of the checks that count.
    """
    return Finding.REFUTED in findings or 3 * (findings.count(Finding.DOUBTFUL) - left_out) > voters


def alike(layout: FragmentLayout, honest: int, cosine: float, seed: int) -> list[Tensor]:
    """Return honest outer gradients: a common direction with the given cosine between any two.

    Rows differ in size, as those of real gradients do.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.cat(
        [
            torch.exp(0.5 * torch.randn(tensor.rows, generator=generator)).repeat_interleave(tensor.row_elements)
            for tensor in layout.tensors
        ]
    )
    common = torch.randn(layout.elements, generator=generator)
    found = []
    for _ in range(honest):
        own = torch.randn(layout.elements, generator=generator)
        found.append(rows * (math.sqrt(cosine) * common + math.sqrt(1 - cosine) * own))
    return found
