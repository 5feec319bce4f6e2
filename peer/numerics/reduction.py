"""The tensor side of a round, without any I/O: encode, admit, reduce, plan (design §6.2 steps 4 to 8).

Every peer first encodes, and then hashes, measures and merges the *decoded* bytes, so the committed bytes count.
Squared norms are lists "per segment" in the order of `Partitioning.segments`. Members are numbered as in the input set,
and every sum runs in that order. `peer.numerics.outer_step` takes the results from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coordinator.wire.merkle import MerkleTree
from coordinator.wire.messages import SQUARED_NORM_MAX
from dht.errors import LocalError, PeerError
from peer.machine.buffer_pool import new_vector
from peer.numerics.codec import Buffer, Codec
from peer.numerics.core_pool import ONE_CORE, Cores
from peer.numerics.encoded_parts import encode_parts, keeps_digits
from peer.numerics.fragments import Partitioning
from peer.numerics.merge import MergeRule, squared_norm
from peer.numerics.robust.segments import TensorInputs, merge_segment, segment_factors

NORM_TOLERANCE = 1e-4  # relative: enough for another order of summation, far too little to steer a merge
ROUGH_TOLERANCE = NORM_TOLERANCE / 2  # within this, a float32 sum confirms a committed norm
ROUGH_ELEMENTS = 1 << 14  # number of elements of one such sum, whose error is within that even in the worst case


class Member(Protocol):
    """The relevant parts of a member's commitment: its weight, and the squared norm of every segment."""

    @property
    def weight(self) -> float: ...

    @property
    def squared_norms(self) -> tuple[float, ...]: ...


@dataclass(frozen=True, slots=True)
class Contribution:
    """A member's encoded outer gradient: one part and Merkle tree per partition, and norms of the decoded parts."""

    parts: tuple[bytes, ...]
    trees: tuple[MerkleTree, ...]
    squared_norms: tuple[float, ...]

    @property
    def part_roots(self) -> tuple[bytes, ...]:
        """Merkle roots that commit to the parts."""
        return tuple(tree.root for tree in self.trees)


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admissible partition: decoded, float32[its elements], with the squared norms of its segments.

    For a contribution the norms may be the committed ones, where these are surely right; else they are measured here.
    """

    vector: Tensor
    squared_norms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ReducedPartition:
    """The publication of a reducer: `data`, and signed fields for all the rest; of `tree`, only the root is signed.

    `coefficients` has one α per included member, segment after segment. It is empty if the merge of a segment is not a
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
        """Merkle root under which others find `data`."""
        return self.tree.root


def encode_contribution(
    gradient: Callable[[slice], Tensor],
    partitioning: Partitioning,
    codec: Codec,
    left: Tensor | None = None,
    cores: Cores = ONE_CORE,
) -> Contribution:
    """Encode the outer gradient; `gradient` computes its elements in a slice of the fragment, float32[length].

    Writes the residue of the encoding to `left`, float32[elements], if given. Raises LocalError if a value is not
    finite or the vector absurdly long.
    """

    def keep(span: slice, own: Tensor, seen: Tensor) -> None:
        if left is not None:
            torch.sub(own, seen, out=left[span])

    parts = encode_parts(gradient, partitioning, range(partitioning.partitions), codec, keep, cores)
    squared_norms = tuple(norm for one in parts for norm in one.squared_norms)
    if any(value > SQUARED_NORM_MAX for value in squared_norms):
        raise LocalError("the outer gradient is too large to contribute: training has diverged on this machine")
    return Contribution(tuple(one.data for one in parts), tuple(one.tree for one in parts), squared_norms)


def admit(
    data: Buffer, squared_norms: Sequence[float], partitioning: Partitioning, partition: int, codec: Codec
) -> Admitted | str:
    """Decode partition `partition` of a contribution, or return why it is inadmissible.

    It is admissible if its bytes are (`measure`), and the squared norms of its segments match the commitment.
    Inadmissible parts are left out, never replaced by zeros (design §6.2 step 6).
    """
    vector = _decoded(data, partitioning, partition, codec)
    if isinstance(vector, str):
        return vector
    pieces = _pieces(vector, partitioning, partition)
    if len(pieces) == len(squared_norms) and all(map(_surely_has, pieces, squared_norms)):
        return Admitted(vector, tuple(squared_norms))
    found = _measured(vector, partitioning, partition)
    if isinstance(found, str):
        return found
    if len(found.squared_norms) != len(squared_norms):
        return "wrong number of norms"
    if not all(map(_norm_matches, found.squared_norms, squared_norms)):
        return "a norm is not as committed"
    return found


def measure(data: Buffer, partitioning: Partitioning, partition: int, codec: Codec) -> Admitted | str:
    """Decode partition `partition` of a contribution or result, or return why its bytes alone rule it out.

    `data` is known to have the committed root, because it is stored under that root. Its length must be that of the
    partition, and every value finite. A reducer's claims about its result's norms do not matter: every member measures
    them.
    """
    vector = _decoded(data, partitioning, partition, codec)
    return vector if isinstance(vector, str) else _measured(vector, partitioning, partition)


def _measured(vector: Tensor, partitioning: Partitioning, partition: int) -> Admitted | str:
    measured = segment_norms(vector, partitioning, partition)
    if not all(norm <= SQUARED_NORM_MAX for norm in measured):  # false for NaN
        return "a value is not finite, or absurdly large"
    return Admitted(vector, measured)


def _decoded(data: Buffer, partitioning: Partitioning, partition: int, codec: Codec) -> Tensor | str:
    if len(data) != codec.encoded_bytes(partitioning.elements(partition)):
        return "wrong length"
    try:
        return codec.decode(data, partitioning.elements(partition))
    except PeerError as error:
        return str(error)


def is_measurable(data: Buffer, partitioning: Partitioning, partition: int, codec: Codec) -> bool:
    """Whether `measure` accepts these bytes, which a cheap bound almost always settles."""
    elements = partitioning.elements(partition)
    try:
        if codec.squared_length_max(data, elements) <= SQUARED_NORM_MAX / 2:  # the factor 1/2 is a margin for rounding
            return True
    except PeerError:
        return False
    return not isinstance(measure(data, partitioning, partition, codec), str)


@dataclass(frozen=True, slots=True)
class MergedPartition:
    """A partition merged from the members `included`: float32[its elements], and per segment their coefficients.

    A segment has no coefficients if its merge is not a combination of whole pieces.
    """

    vector: Tensor
    included: tuple[int, ...]
    coefficients: list[tuple[float, ...] | None]


def merge_partition(
    vectors: Mapping[int, Tensor],
    members: Mapping[int, Member],
    rule: MergeRule,
    partitioning: Partitioning,
    partition: int,
    cores: Cores = ONE_CORE,
) -> MergedPartition:
    """Merge the admitted `vectors` by member (float32, each partition `partition` of that member).

    At least one of them must have weight. Raises as `merge_segment` does, but never ValueError for admitted vectors.
    """
    included = tuple(sorted(vectors))
    merged = new_vector(partitioning.elements(partition))

    def merge(segment: tuple[slice, TensorInputs]) -> tuple[float, ...] | None:
        span, inputs = segment
        room = merged[span]
        piece = merge_segment(rule, [vectors[index][span] for index in included], inputs, room)
        if piece.vector is not room:
            room.copy_(piece.vector)
        return piece.coefficients

    segments = segment_inputs([members[index] for index in included], rule, partitioning, partition)
    return MergedPartition(merged, included, cores.each(merge, segments))


def publish(
    merged: MergedPartition, partitioning: Partitioning, partition: int, codec: Codec, cores: Cores = ONE_CORE
) -> ReducedPartition:
    """Encode the merged partition once, and measure the error of the encoding."""
    first = partitioning.bounds[partition]
    squares: dict[int, tuple[float, float]] = {}  # of a span's elements, and of its encoding error

    def compare(span: slice, own: Tensor, seen: Tensor) -> None:
        squares[span.start] = _rough_norm(own), _rough_norm(own - seen)

    def vector(span: slice) -> Tensor:
        return merged.vector[span.start - first : span.stop - first]

    (part,) = encode_parts(vector, partitioning, [partition], codec, compare, cores)
    whole, cut_off = (sum(squares[start][which] for start in sorted(squares)) for which in (0, 1))
    published = merged.coefficients
    return ReducedPartition(
        data=part.data,
        tree=part.tree,
        included=merged.included,
        coefficients=() if None in published else tuple(alpha for own in published for alpha in own or ()),
        squared_norms=part.squared_norms,
        encoding_error=math.sqrt(cut_off / whole) if whole else 0.0,  # need not be the same on other machines
    )


def segment_inputs(
    members: Sequence[Member], rule: MergeRule, partitioning: Partitioning, partition: int
) -> list[tuple[slice, TensorInputs]]:
    """Return per segment its elements, counted from the partition's first, and the inputs of its merge."""
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
        """Return factors and spans for `combine` on vectors that hold only the elements of these windows, concatenated.

        A window is the elements of consecutive leaves. A spot check combines and encodes just these, and must get the
        bytes of the leaves (design §6.2 step 8).
        """
        found = [
            (own, factors)
            for span, factors in zip(self.spans, self.factors, strict=True)
            for own in overlaps(span, windows)
        ]
        found.sort(key=lambda one: one[0].start)
        return [factors for _, factors in found], [own for own, _ in found]


def overlaps(span: slice, windows: Sequence[slice]) -> list[slice]:
    """Return where `span` is in the concatenated elements of these windows."""
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
    """Return how the published `coefficients` of this many members combine it; `segments` as from `segment_inputs`."""
    return MergePlan(
        tuple(span for span, _ in segments),
        tuple(
            segment_factors(rule, coefficients[index * members : (index + 1) * members], inputs)
            for index, (_, inputs) in enumerate(segments)
        ),
    )


def segment_norms(vector: Tensor, partitioning: Partitioning, partition: int) -> tuple[float, ...]:
    """Return the squared norms of a partition's segments."""
    return tuple(map(squared_norm, _pieces(vector, partitioning, partition)))


def _pieces(vector: Tensor, partitioning: Partitioning, partition: int) -> list[Tensor]:
    """Return views of a partition's segments."""
    first, own = partitioning.bounds[partition], partitioning.segment_span(partition)
    return [vector[segment.start - first : segment.stop - first] for segment in partitioning.segments[own]]


def _surely_has(piece: Tensor, committed: float) -> bool:
    """Whether a float32 sum confirms that a segment's squared norm is as committed, as it nearly always does.

    The exact norm, which is the same on every machine, takes five times as long. It is needed only where this is False.
    """
    rough = _rough_norm(piece)
    return keeps_digits(rough, len(piece)) and abs(rough - committed) <= ROUGH_TOLERANCE * rough


def _rough_norm(vector: Tensor) -> float:
    """Return approximately ‖x‖², summed in float32."""
    return sum(float(torch.dot(part, part)) for part in torch.split(vector, ROUGH_ELEMENTS))


def _norm_matches(measured: float, committed: float) -> bool:
    return committed <= SQUARED_NORM_MAX and abs(measured - committed) <= NORM_TOLERANCE * max(measured, committed)


def _tensor_norms(member: Member, partitioning: Partitioning) -> list[float]:
    return [math.sqrt(total) for total in partitioning.tensor_sums(member.squared_norms)]
