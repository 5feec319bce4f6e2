"""The tensor side of a round, without any I/O: encode, admit, reduce, put together, step (design §6.2 steps 4 to 9).

Everybody encodes first; then hashes, measures and merges the *decoded* bytes, so what is committed is what counts.
Squared norms are lists "per segment" in the order of `Partitioning.segments`. Members are numbered as in the input set,
and that order is the order of every sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coordinator.merkle import MerkleTree, merkle_tree
from coordinator.messages import SQUARED_NORM_MAX
from dht.errors import LocalError, PeerError
from peer.codec import Buffer, Codec
from peer.fragments import Partitioning
from peer.merge import MergeRule, direction_scale, lower_weighted_median, squared_norm
from peer.outer_optimizer import OuterState, outer_step
from peer.robust.segments import TensorInputs, merge_segment, segment_factors, tensor_radius
from peer.robust.stack import Singles

FLOAT_BYTES = 4
NORM_TOLERANCE = 1e-4  # relative: room for one who sums in another order, far below what could steer a merge


class Member(Protocol):
    """What counts of a member's commitment: its weight, and the squared norm of every segment."""

    @property
    def weight(self) -> float: ...

    @property
    def squared_norms(self) -> tuple[float, ...]: ...


Weighed = Callable[[Collection[int]], Sequence[Member]]
"""Members of the input set in order, weighted for a sum of just these: what one weighs depends on the others."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A member's encoded outer gradient: one part and Merkle tree per partition; norms of what the others see."""

    parts: tuple[bytes, ...]
    trees: tuple[MerkleTree, ...]
    squared_norms: tuple[float, ...]

    @property
    def part_roots(self) -> tuple[bytes, ...]:
        """What commits to the parts."""
        return tuple(tree.root for tree in self.trees)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A partition that counts: decoded, float32[its elements], with the squared norms of its segments as found here."""

    vector: Tensor
    squared_norms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeldResult:
    """A reduced partition as everybody holds it, and the members included."""

    admitted: Admitted
    included: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReducedPartition:
    """What a reducer publishes: `data`, and signed all the rest, of `tree` the root.

    `coefficients` has one α per included member, segment after segment; none at all if a segment's merge is no
    combination of whole pieces.
    """

    data: bytes
    tree: MerkleTree
    included: tuple[int, ...]
    coefficients: tuple[float, ...]
    squared_norms: tuple[float, ...]
    encoding_error: float

    @property
    def root(self) -> bytes:
        """Under which the others find `data`."""
        return self.tree.root


def encode_contribution(
    gradients: Iterable[Tensor], partitioning: Partitioning, codec: Codec, left: Tensor | None = None
) -> Contribution:
    """Encode the outer gradient, of which `gradients` has one partition after the other, float32[its elements].

    They are taken one at a time, so the whole need never be in memory. What encoding cuts off is written to `left`,
    float32[elements], if given. Raises LocalError if a value is not finite or the vector absurdly long.
    """
    parts: list[bytes] = []
    squared_norms: list[float] = []
    for partition, gradient in enumerate(gradients):
        parts.append(codec.encode(gradient))
        seen = codec.decode(parts[-1], len(gradient))
        squared_norms += segment_norms(seen, partitioning, partition)
        if left is not None:
            torch.sub(gradient, seen, out=left[partitioning.span(partition)])
    if any(value > SQUARED_NORM_MAX for value in squared_norms):
        raise LocalError("the outer gradient is too large to contribute: training has diverged on this machine")
    trees = tuple(merkle_tree(part, codec.leaf_bytes) for part in parts)
    return Contribution(tuple(parts), trees, tuple(squared_norms))


def admit(
    data: Buffer, squared_norms: Sequence[float], partitioning: Partitioning, partition: int, codec: Codec
) -> Admitted | str:
    """Decode partition `partition` of a contribution, or say why it does not count.

    It counts if it does by itself (`measure`) and the squared norms of its segments are as committed. What does not
    count is left out, never replaced by zeros (design §6.2 step 6).
    """
    found = measure(data, partitioning, partition, codec)
    if isinstance(found, str):
        return found
    if len(found.squared_norms) != len(squared_norms):
        return "wrong number of norms"
    if not all(map(_norm_matches, found.squared_norms, squared_norms)):
        return "a norm is not as committed"
    return found


def measure(data: Buffer, partitioning: Partitioning, partition: int, codec: Codec) -> Admitted | str:
    """Decode partition `partition` of a contribution or result, or say why its bytes alone rule it out.

    `data` has the committed root: that is the name under which it was kept. Its length is that of the partition, and
    every value is finite. What a reducer tells of its result's norms is not asked for: everybody finds them.
    """
    if len(data) != codec.encoded_bytes(partitioning.elements(partition)):
        return "wrong length"
    try:
        vector = codec.decode(data, partitioning.elements(partition))
    except PeerError as error:
        return str(error)
    measured = segment_norms(vector, partitioning, partition)
    if not all(norm <= SQUARED_NORM_MAX for norm in measured):  # NaN is not
        return "a value is not finite, or absurdly large"
    return Admitted(vector, measured)


def reduce_partition(
    vectors: Mapping[int, Tensor],
    members: Mapping[int, Member],
    rule: MergeRule,
    partitioning: Partitioning,
    partition: int,
    codec: Codec,
) -> ReducedPartition:
    """Merge the admitted `vectors` (float32, partition `partition` of the member that is the key) and encode once.

    At least one of them has weight. Raises as `merge_segment` does, ValueError not for admitted vectors.
    """
    included = tuple(sorted(vectors))
    counted = [members[index] for index in included]
    merged = torch.empty(partitioning.elements(partition))
    published: list[tuple[float, ...] | None] = []
    for span, inputs in segment_inputs(counted, rule, partitioning, partition):
        piece = merge_segment(rule, [vectors[index][span] for index in included], inputs)
        merged[span] = piece.vector
        published.append(piece.coefficients)
    data = codec.encode(merged)
    decoded = codec.decode(data, len(merged))
    squared_norms, length = segment_norms(decoded, partitioning, partition), math.sqrt(squared_norm(merged))
    cut_off = decoded.sub_(merged)  # in place: nobody needs it any more
    return ReducedPartition(
        data=data,
        tree=merkle_tree(data, codec.leaf_bytes),
        included=included,
        coefficients=() if None in published else tuple(alpha for own in published for alpha in own or ()),
        squared_norms=squared_norms,
        encoding_error=math.sqrt(squared_norm(cut_off)) / length if length else 0.0,
    )


def segment_inputs(
    members: Sequence[Member], rule: MergeRule, partitioning: Partitioning, partition: int
) -> list[tuple[slice, TensorInputs]]:
    """Per segment of a partition: its elements, counted from the partition's first, and what its merge starts from."""
    norms = [_tensor_norms(member, partitioning) for member in members]
    weights = tuple(member.weight for member in members)
    first, found = partitioning.bounds[partition], []
    for segment in partitioning.segments[partitioning.segment_span(partition)]:
        tensor = partitioning.layout.tensors[segment.tensor]
        inputs = TensorInputs(
            norms=tuple(own[segment.tensor] for own in norms),
            weights=weights,
            embedding=tensor.embedding,
            row_elements=tensor.row_elements if rule.has_rows(tensor) else 0,
        )
        found.append((slice(segment.start - first, segment.stop - first), inputs))
    return found


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Per segment of a partition its elements, counted from the partition's first, and every member's factor there."""

    spans: tuple[slice, ...]
    factors: tuple[list[np.float32], ...]

    def windows(self, windows: Sequence[slice]) -> tuple[list[list[np.float32]], list[slice]]:
        """Factors and spans for `combine`, for vectors that hold only these windows' elements, side by side.

        A window is one leaf's elements (`Codec.leaf_elements`) for a spot check, which combines and encodes just
        these and must find the leaves' bytes (design §6.2 step 8).
        """
        found = [
            (own, factors)
            for span, factors in zip(self.spans, self.factors, strict=True)
            for own in overlaps(span, windows)
        ]
        found.sort(key=lambda one: one[0].start)
        return [factors for _, factors in found], [own for own, _ in found]


def overlaps(span: slice, windows: Sequence[slice]) -> list[slice]:
    """Where `span` is in the elements of these windows laid side by side."""
    found, offset = [], 0
    for window in windows:
        start, stop = max(span.start, window.start), min(span.stop, window.stop)
        if start < stop:
            found.append(slice(offset + start - window.start, offset + stop - window.start))
        offset += window.stop - window.start
    return found


def merge_plan(
    rule: str, segments: Sequence[tuple[slice, TensorInputs]], coefficients: Sequence[float], members: int
) -> MergePlan:
    """How published `coefficients` of a partition of so many members combine it; `segments` as in `segment_inputs`."""
    return MergePlan(
        tuple(span for span, _ in segments),
        tuple(
            segment_factors(rule, coefficients[index * members : (index + 1) * members], inputs)
            for index, (_, inputs) in enumerate(segments)
        ),
    )


def merged_gradients(
    partitioning: Partitioning, results: Sequence[HeldResult | None], weighed: Weighed, rule: MergeRule
) -> tuple[list[Tensor | None], Singles]:
    """The merged outer gradient by partition, None where it is void, and what each tensor was multiplied by.

    That gives a tensor its length; the vectors of `results` are scaled in place. A length counts members that some live
    partition of the tensor includes, weighted for just these: whom a reducer leaves out must not make the heavy ones
    the most of what is left (docs/adr/0046). Lengths of merged directions are those found here, not those that the
    reducers tell: `squared_norm` is the same on every machine, and nobody can tell two members two numbers.
    """
    scales = np.ones(len(partitioning.layout.tensors), np.float32)
    found = _found_norms(partitioning, results)
    for index, tensor in enumerate(partitioning.layout.tensors):
        if rule.is_directional(tensor):
            scales[index] = _tensor_scale(index, partitioning, (results, found), weighed, rule)
    gradients = [
        None if one is None else _scaled(one.admitted.vector, scales, partitioning, partition)
        for partition, one in enumerate(results)
    ]
    return gradients, scales


def joined(gradients: Sequence[Tensor | None], partitioning: Partitioning) -> Tensor:
    """The merged outer gradient in one piece, float32[elements]; what is void is zero."""
    return torch.cat([torch.zeros(partitioning.elements(j)) if own is None else own for j, own in enumerate(gradients)])


def step_bytes(partitioning: Partitioning, void: AbstractSet[int], codec: Codec) -> int:
    """How long a told step is: a float32 for each tensor, then the encoded results of the partitions that count."""
    live = (partition for partition in range(partitioning.partitions) if partition not in void)
    sizes = (codec.encoded_bytes(partitioning.elements(partition)) for partition in live)
    return FLOAT_BYTES * len(partitioning.layout.tensors) + sum(sizes)


def told_gradients(
    told: Buffer, partitioning: Partitioning, void: AbstractSet[int], codec: Codec
) -> list[Tensor | None]:
    """The merged outer gradient that a told step is about, by partition; raises PeerError if it does not decode."""
    start = FLOAT_BYTES * len(partitioning.layout.tensors)
    scales = np.frombuffer(told[:start], "<f4").astype(np.float32)
    if not np.isfinite(scales).all():
        raise PeerError("the step gives a tensor a length that is not finite")
    gradients: list[Tensor | None] = []
    for partition in range(partitioning.partitions):
        elements = partitioning.elements(partition)
        stop = start + codec.encoded_bytes(elements) * (partition not in void)
        own = None if partition in void else codec.decode(told[start:stop], elements)
        gradients.append(None if own is None else _scaled(own, scales, partitioning, partition))
        start = stop
    return gradients


def apply_merged(
    state: OuterState,
    gradients: Sequence[Tensor | None],
    partitioning: Partitioning,
    rates: tuple[float, float],
    new: OuterState | None = None,
) -> OuterState:
    """The outer step with `rates` = (η, μ), by partition, into `new` if given.

    Where there is no gradient the partition is void and frozen: anchor and momentum stay bit for bit.
    """
    new = OuterState.empty_like(state.anchor) if new is None else new
    for partition, gradient in enumerate(gradients):
        span = partitioning.span(partition)
        own = OuterState(state.anchor[span], state.momentum[span])
        out = OuterState(new.anchor[span], new.momentum[span])
        if gradient is None:
            out.anchor.copy_(own.anchor)
            out.momentum.copy_(own.momentum)
        else:
            outer_step(own, gradient, *rates, out=out)
    return new


def _scaled(vector: Tensor, scales: Singles, partitioning: Partitioning, partition: int) -> Tensor:
    """In place; a tensor whose scale is one keeps its bits."""
    first = partitioning.bounds[partition]
    for segment in partitioning.segments[partitioning.segment_span(partition)]:
        piece = vector[segment.start - first : segment.stop - first].numpy()
        piece *= scales[segment.tensor]
    return vector


def segment_norms(vector: Tensor, partitioning: Partitioning, partition: int) -> tuple[float, ...]:
    """Squared norms of a partition's segments."""
    first = partitioning.bounds[partition]
    return tuple(
        squared_norm(vector[segment.start - first : segment.stop - first])
        for segment in partitioning.segments[partitioning.segment_span(partition)]
    )


def _norm_matches(measured: float, committed: float) -> bool:
    return committed <= SQUARED_NORM_MAX and abs(measured - committed) <= NORM_TOLERANCE * max(measured, committed)


def _tensor_norms(member: Member, partitioning: Partitioning) -> list[float]:
    return [math.sqrt(total) for total in partitioning.tensor_sums(member.squared_norms)]


def _tensor_scale(
    tensor: int,
    partitioning: Partitioning,
    held: tuple[Sequence[HeldResult | None], Sequence[float]],
    weighed: Weighed,
    rule: MergeRule,
) -> np.float32:
    """What gives a tensor's merged direction its length: `tensor_radius` of the inputs' norms.

    A frozen segment counts with the inputs' weighted median: the live ones get the part of the squared length that
    they hold in the median input. (Not the median itself: a mean of nearly orthogonal unit vectors is shorter.)
    Sums are exact ones, rounded once: what `sum` makes of floats depends on the version of Python.
    """
    results, found = held
    own = [(at, segment) for at, segment in enumerate(partitioning.segments) if segment.tensor == tensor]
    live = [(at, segment) for at, segment in own if results[segment.partition] is not None]
    kept = [result for _, segment in own if (result := results[segment.partition]) is not None]
    counted = weighed({index for result in kept for index in result.included})
    weights = [member.weight for member in counted]
    squares = [math.fsum(member.squared_norms[at] for at, _ in own) for member in counted]
    share = 1.0
    if len(live) < len(own):
        living = [math.fsum(member.squared_norms[at] for at, _ in live) for member in counted]
        shares = [part / square if square > 0 else 0.0 for part, square in zip(living, squares, strict=True)]
        share = lower_weighted_median(
            shares, [w if square > 0 else 0.0 for w, square in zip(weights, squares, strict=True)]
        )
    norms = tuple(math.sqrt(square) for square in squares)
    radius = tensor_radius(rule.name, TensorInputs(norms, tuple(weights), embedding=False)) if counted else 0.0
    squared_length = math.fsum(found[at] for at, _ in live)
    return direction_scale(radius, squared_length, share)


def _found_norms(partitioning: Partitioning, results: Sequence[HeldResult | None]) -> list[float]:
    """Squared norms per segment as this member has found them, 0 where there is no result."""
    found: list[float] = []
    for partition, result in enumerate(results):
        own = partitioning.segment_span(partition)
        found += [0.0] * (own.stop - own.start) if result is None else result.admitted.squared_norms
    return found
