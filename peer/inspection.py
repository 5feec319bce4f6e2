"""Spot checks on the tensor side: open leaves, and recompute a leaf of a result bit for bit (design §6.2 step 8).

A leaf of the result covers some leaves of every input, fewer or more where their codecs differ. Everybody derives from
layout, codecs and a seed which leaves a voter looks at, so a request names nothing but the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coordinator.actions import Inspect, Open, ReduceInput
from coordinator.events import Finding, Inspected, Opened
from coordinator.merkle import MerkleTree, leaf_count
from coordinator.messages import COEFFICIENTS_MAX
from coordinator.openings import (
    OpenedInput,
    OpeningNote,
    Refutation,
    depth_of,
    drawn_leaves,
    known_nodes,
    leaves_per_voter,
    sibling_places,
    siblings_from,
)
from dht.errors import LocalError, PeerError
from dht.statement import DIGEST_BYTES
from peer.blobs import BlobStore
from peer.codec import Buffer, Codec
from peer.fragments import Partitioning
from peer.merge import MergeRule, combine
from peer.reduction import MergePlan, merge_plan, overlaps, segment_inputs
from peer.robust.segments import BY_COORDINATE, TensorInputs, merge_segment
from peer.rule_check import Sample, follows_rule, published_form

Segments = Sequence[tuple[slice, TensorInputs]]

SHARED_LEVELS = 2  # of a proof's path, on average, that the leaves of one opening have in common


@dataclass(frozen=True, slots=True)
class Leaves:
    """Where the leaves of one partition are, in results and in contributions."""

    elements: int
    contribution: Codec
    result: Codec

    @property
    def count(self) -> int:
        """Leaves of the result."""
        return leaf_count(self.result.encoded_bytes(self.elements), self.result.leaf_bytes)

    @property
    def input_count(self) -> int:
        """Leaves of each contribution."""
        return leaf_count(self.contribution.encoded_bytes(self.elements), self.contribution.leaf_bytes)

    def window(self, leaf: int) -> slice:
        """Elements that a leaf of the result encodes, counted from the partition's first."""
        size = self.result.leaf_elements
        return slice(min(leaf * size, self.elements), min((leaf + 1) * size, self.elements))

    def cut_out(self, data: Buffer, chosen: Sequence[int]) -> bytes:
        """The bytes of these leaves of a result."""
        size = self.result.leaf_bytes
        return b"".join(data[leaf * size : (leaf + 1) * size] for leaf in chosen)

    def covering(self, leaf: int) -> range:
        """Leaves of a contribution that hold the elements of a leaf of the result."""
        window, size = self.window(leaf), self.contribution.leaf_elements
        return range(window.start // size, max(-(-window.stop // size), window.start // size + 1))

    def covering_all(self, leaves: Sequence[int]) -> list[int]:
        """The same for several leaves, each once, in ascending order."""
        return sorted({index for leaf in leaves for index in self.covering(leaf)})

    @property
    def bytes_each(self) -> int:
        """About what one opened leaf of one input costs."""
        pieces = len(self.covering(0)) + (self.result.leaf_elements % self.contribution.leaf_elements != 0)
        path = max(depth_of(self.input_count) - SHARED_LEVELS, 0)
        return pieces * self.contribution.leaf_bytes + path * (DIGEST_BYTES + 2)

    def elements_in(self, index: int) -> int:
        """Elements of one leaf of a contribution: fewer only in the last."""
        size = self.contribution.leaf_elements
        return min((index + 1) * size, self.elements) - index * size


class Inspector:
    """Opens and inspects for one peer, from the bytes in its store."""

    def __init__(
        self,
        partitioning: Callable[[int, int], Partitioning],
        codecs: tuple[Codec, Codec],
        rule: MergeRule,
        blobs: BlobStore,
    ) -> None:
        """`partitioning` of a fragment and so many partitions; `codecs` of contributions and of results."""
        self._partitioning = partitioning
        self._codecs = codecs
        self._rule = rule
        self._blobs = blobs

    def open(self, action: Open) -> Opened:
        """Open the drawn leaves of these inputs; nothing if the bytes of one are gone."""
        cut = self._partitioning(action.key.fragment, action.partitions)
        leaves = self._leaves(cut, action.partition)
        indices = leaves.covering_all(self._drawn(action, cut, leaves))
        opened = [self._opened(one, leaves, indices) for one in action.inputs]
        whole = tuple(one for one in opened if one is not None)
        if len(whole) < len(opened):
            return Opened(action.key, action.to, None)
        note = OpeningNote(
            group=action.key.roster_id,
            partition=action.partition,
            turn=action.turn,
            seed=action.seed,
            inputs=whole,
        )
        return Opened(action.key, action.to, note)

    def inspect(self, action: Inspect) -> Inspected:
        """Recompute the drawn leaves, or the one that a refutation shows; the first that differs refutes the result."""
        cut = self._partitioning(action.key.fragment, action.partitions)
        leaves = self._leaves(cut, action.partition)
        chosen = self._drawn(action, cut, leaves) if action.leaf is None else (action.leaf,)
        look = self._look(action, leaves, chosen)
        tree = self._blobs.tree(action.root, leaves.result.leaf_bytes)
        if look is None or tree is None:
            return _inspected(action, Finding.UNOPENED)
        if any(len(one.squared_norms) != len(cut.segments) for one in action.inputs):  # no honest reducer takes it
            return _inspected(action, Finding.REFUTED, self._refutation(action, look, chosen[0], tree))
        segments = segment_inputs(action.inputs, self._rule, cut, action.partition)
        wrong = self._first_wrong(action, look, segments)
        if wrong is not None:
            return _inspected(action, Finding.REFUTED, self._refutation(action, look, wrong, tree))
        doubtful = action.leaf is None and not self._follows_rule(action, look, segments)
        return _inspected(action, Finding.DOUBTFUL if doubtful else Finding.CONFIRMED)

    # -- what is looked at

    def _leaves(self, cut: Partitioning, partition: int) -> Leaves:
        return Leaves(cut.elements(partition), *self._codecs)

    def _drawn(self, action: Open | Inspect, cut: Partitioning, leaves: Leaves) -> tuple[int, ...]:
        whole_bytes = sum(codec.encoded_bytes(cut.layout.elements) for codec in self._codecs)
        butterfly_bytes = whole_bytes * (action.voters - 1) // action.voters
        count = leaves_per_voter(action.voters, action.partitions, leaves.bytes_each, butterfly_bytes)
        return drawn_leaves(action.seed, leaves.count, count)

    def _opened(self, one: ReduceInput, leaves: Leaves, indices: Sequence[int]) -> OpenedInput | None:
        """Leaves of an input that is in the store."""
        size = leaves.contribution.leaf_bytes
        data, tree = self._blobs.get(one.root), self._blobs.tree(one.root, size)
        if data is None or tree is None or len(tree.leaves) != leaves.input_count:
            return None
        pieces = tuple(bytes(data[index * size : (index + 1) * size]) for index in indices)
        return OpenedInput(member=one.member, pieces=pieces, siblings=_siblings(tree, indices))

    def _look(self, action: Inspect, leaves: Leaves, chosen: tuple[int, ...]) -> Look | None:
        """Every included input with its proof verified; None if one is missing or proves nothing."""
        if any(leaf >= leaves.count for leaf in chosen):
            return None
        indices = leaves.covering_all(chosen)
        shown = {one.member: one for one in action.opened}
        opened: list[OpenedInput] = []
        for one in action.inputs:
            found = shown.get(one.member) or self._opened(one, leaves, indices)
            nodes = None if found is None else known_nodes(found.pieces, indices, leaves.input_count, found.siblings)
            if found is None or nodes is None or nodes[depth_of(leaves.input_count), 0] != one.root:
                return None
            opened.append(found)
        return Look(leaves, chosen, indices, tuple(opened))

    # -- what it comes to

    def _first_wrong(self, action: Inspect, look: Look, segments: Segments) -> int | None:
        """The first leaf whose bytes are not what the inputs come to; the first of all if no result can be such."""
        data = self._blobs.get(action.root)
        exact = self._is_exact(action, segments)
        if data is None or not (exact or self._is_unverifiable(segments, len(action.inputs))):
            return look.chosen[0]
        if not exact:
            return None
        plan = merge_plan(self._rule.name, segments, action.coefficients, len(action.inputs))

        def is_wrong(chosen: Sequence[int]) -> bool:
            return self._recomputed(chosen, look, segments, plan) != look.leaves.cut_out(data, chosen)

        if not is_wrong(look.chosen):
            return None
        return next((leaf for leaf in look.chosen if is_wrong((leaf,))), look.chosen[0])

    def _is_exact(self, action: Inspect, segments: Segments) -> bool:
        """Whether the result has what a leaf is recomputed with: a rule by coordinate, or coefficients in its form."""
        if self._rule.name in BY_COORDINATE:
            return not action.coefficients
        return published_form(self._rule.name, action.coefficients, [inputs for _, inputs in segments])

    def _is_unverifiable(self, segments: Segments, members: int) -> bool:
        """Whether even an honest result has no coefficients, so that only a second reduction could check it."""
        rows = any(inputs.row_elements for _, inputs in segments)
        many = len(segments) * members > COEFFICIENTS_MAX
        return rows or many or self._rule.name == "nnm_trimmed_mean"

    def _recomputed(self, chosen: Sequence[int], look: Look, segments: Segments, plan: MergePlan) -> bytes | None:
        """Leaves of the result, one after the other, as their inputs give them; None if they give no such thing."""
        windows = [look.leaves.window(leaf) for leaf in chosen]
        try:
            vectors = look.vectors(chosen)
            if self._rule.name in BY_COORDINATE:
                merged = _merged_by_coordinate(self._rule.name, vectors, segments, windows)
            else:
                with np.errstate(over="ignore", invalid="ignore"):
                    merged = combine(vectors, *plan.windows(windows))
            return look.leaves.result.encode(merged)  # blocks are independent, and only the last leaf is not full
        except (PeerError, LocalError, ValueError):
            return None  # inputs that an honest reducer does not include, or a sum that no reducer can encode

    def _follows_rule(self, action: Inspect, look: Look, segments: Segments) -> bool:
        count = len(action.inputs)
        if not action.coefficients:
            return True
        vectors = [vector.numpy() for vector in look.vectors(look.chosen)]
        windows = [look.leaves.window(leaf) for leaf in look.chosen]
        samples = []
        for index, (span, inputs) in enumerate(segments):
            parts = overlaps(span, windows)
            if parts:
                own = action.coefficients[index * count : (index + 1) * count]
                pieces = [np.concatenate([vector[part] for part in parts]) for vector in vectors]
                samples.append(Sample(pieces, inputs, own))
        return follows_rule(self._rule.name, samples)

    def _refutation(self, action: Inspect, look: Look, leaf: int, tree: MerkleTree) -> Refutation:
        data = self._blobs.get(action.root) or b""
        return Refutation(
            partition=action.partition,
            turn=action.turn,
            result=action.result,
            leaf=leaf,
            inputs=look.alone(leaf),
            piece=look.leaves.cut_out(data, [leaf]),
            siblings=_siblings(tree, [leaf]),
        )


@dataclass(frozen=True, slots=True)
class Look:
    """Verified openings: of every input in `opened` the leaves `indices`, which cover `chosen` leaves of the result."""

    leaves: Leaves
    chosen: tuple[int, ...]
    indices: list[int]
    opened: tuple[OpenedInput, ...]

    def vectors(self, chosen: Sequence[int]) -> list[Tensor]:
        """What every input holds in these leaves of the result, side by side; PeerError if one does not decode."""
        leaves = self.leaves
        own, size = leaves.covering_all(chosen), leaves.contribution.leaf_elements
        lengths = [leaves.contribution.encoded_bytes(leaves.elements_in(index)) for index in own]
        elements = sum(leaves.elements_in(index) for index in own)
        starts = [(own.index(leaves.covering(leaf).start), leaves.covering(leaf).start) for leaf in chosen]
        slices = [
            slice((place - index) * size + window.start, (place - index) * size + window.stop)
            for (place, index), window in zip(starts, map(leaves.window, chosen), strict=True)
        ]
        places = [self.indices.index(index) for index in own]
        found = []
        for one in self.opened:
            pieces = [one.pieces[place] for place in places]
            if [len(piece) for piece in pieces] != lengths:
                raise PeerError("a leaf of a contribution has another length than its codec gives it")
            vector = leaves.contribution.decode(b"".join(pieces), elements)
            found.append(torch.cat([vector[part] for part in slices]))
        return found

    def alone(self, leaf: int) -> tuple[OpenedInput, ...]:
        """The inputs opened for this leaf only."""
        own, count = list(self.leaves.covering(leaf)), self.leaves.input_count
        first = self.indices.index(own[0])
        found = []
        for one in self.opened:
            nodes = known_nodes(one.pieces, self.indices, count, one.siblings) or {}
            pieces = one.pieces[first : first + len(own)]
            found.append(OpenedInput(member=one.member, pieces=pieces, siblings=siblings_from(nodes, own, count)))
        return tuple(found)


def _siblings(tree: MerkleTree, indices: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(tree.levels[level][index] for level, index in sibling_places(indices, len(tree.leaves)))


def _inspected(action: Inspect, finding: Finding, refutation: Refutation | None = None) -> Inspected:
    return Inspected(action.key, action.accuser, action.partition, action.turn, finding, refutation)


def _merged_by_coordinate(rule: str, vectors: Sequence[Tensor], segments: Segments, windows: Sequence[slice]) -> Tensor:
    merged = torch.empty_like(vectors[0])
    for span, inputs in segments:
        for own in overlaps(span, windows):
            merged[own] = merge_segment(rule, [vector[own] for vector in vectors], inputs).vector
    return merged
