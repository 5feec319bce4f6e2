"""Fragments, partitions and segments: which part of the model is synchronised when, and which peer reduces it.

A fragment is an ordered list of whole tensors, or of row ranges of embeddings that are cut, flattened into one
contiguous float32 vector. For a round it is cut into partitions, one per reducer. The overlap of a tensor and a
partition is a segment (design §6.2, §7).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from coordinator.wire.messages import SEGMENTS_MAX
from coordinator.wire.openings import PARTITIONS_MAX
from dht.errors import UsageError

FLOAT_BYTES = 4
FRAGMENT_TENSORS_MAX = SEGMENTS_MAX - PARTITIONS_MAX + 1  # each cut between partitions makes one segment more


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the model. `embedding` ones are merged by plain weighted mean (DiLoCo 2604.21428 §D.2).

    `start` is the distribution of its values at version 0, where they are seeded: `uniform` is within ± `bound`, or by
    default within a bound that suits the model's width. With `whole_rows`, this is only a part of the tensor, from
    `first_row` on.
    """

    name: str
    shape: tuple[int, ...]
    embedding: bool = False
    start: Literal["uniform", "ones", "zeros"] = "uniform"
    bound: float | None = None
    first_row: int = 0
    whole_rows: int | None = None

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.shape):
            raise ValueError(f"tensor {self.name} of shape {self.shape} holds nothing")

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_elements(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor with this name in the model."""
        return self.shape if self.whole_rows is None else (self.whole_rows, *self.shape[1:])

    def part(self, first_row: int, rows: int) -> TensorSpec:
        """Return the part of this tensor with `rows` rows from `first_row` on."""
        return replace(self, shape=(rows, *self.shape[1:]), first_row=first_row, whole_rows=self.rows)

    def of(self, tensor: Tensor) -> Tensor:
        """Return the view of this part in the model's tensor."""
        return tensor if self.whole_rows is None else tensor[self.first_row : self.first_row + self.rows]


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """Fragment `index`: its tensors in the order in which its flat vector holds them."""

    index: int
    tensors: tuple[TensorSpec, ...]

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each tensor starts in the flat vector, and the end of the last one."""
        return tuple(accumulate((tensor.elements for tensor in self.tensors), initial=0))


@dataclass(frozen=True, slots=True)
class Segment:
    """The overlap of tensor `tensor` and partition `partition`: elements `start` to `stop` of the flat fragment."""

    partition: int
    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Partitioning:
    """A fragment cut for one round; every list "per segment" follows `segments`."""

    layout: FragmentLayout
    bounds: tuple[int, ...]
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, layout: FragmentLayout, partitions: int) -> Partitioning:
        bounds = partition_bounds(layout, partitions)
        return cls(layout, bounds, segments(layout, bounds))

    @property
    def partitions(self) -> int:
        return len(self.bounds) - 1

    def span(self, partition: int) -> slice:
        """Return the elements of the flat fragment that this partition holds."""
        return slice(self.bounds[partition], self.bounds[partition + 1])

    def elements(self, partition: int) -> int:
        return self.bounds[partition + 1] - self.bounds[partition]

    @property
    def spans(self) -> list[slice]:
        """`span` of every partition, in order."""
        return [self.span(partition) for partition in range(self.partitions)]

    def segment_span(self, partition: int) -> slice:
        """Return the slice of a list "per segment" for this partition, whose segments are consecutive."""
        first = sum(segment.partition < partition for segment in self.segments)
        return slice(first, first + sum(segment.partition == partition for segment in self.segments))

    def tensor_sums(self, per_segment: Sequence[float]) -> tuple[float, ...]:
        """Return per tensor the sum over its segments: float64, in order of partitions, so equal on every machine."""
        sums = [0.0] * len(self.layout.tensors)
        for segment, value in zip(self.segments, per_segment, strict=True):
            sums[segment.tensor] += value
        return tuple(sums)


def split_fragments(
    specs: Sequence[TensorSpec], fragments: int, cut_embeddings: bool = False
) -> tuple[FragmentLayout, ...]:
    """Balance tensors over fragments, the largest first into the smallest (DiLoCo 2604.21428 §5.1, App. C).

    Ties go to the lower name and the lower fragment; a fragment lists its tensors by name. So the result does not
    depend on the order of `specs`. Raises UsageError if a fragment would stay empty or have more
    than `FRAGMENT_TENSORS_MAX`.

    With `cut_embeddings`, embeddings larger than a fragment's share fill the first fragments one after the other, cut
    between rows. So the parts of one are consecutive when all fragments are, as the parameters in a learner.
    """
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("tensor names must be distinct")
    if not 1 <= fragments <= len(specs):
        raise UsageError(
            f"a model of {len(specs)} tensors cannot be cut into {fragments} fragments; lower pace.fragments"
        )
    ordered = sorted(specs, key=lambda spec: (-spec.elements, spec.name))
    share = sum(spec.elements for spec in specs) / fragments
    tables = [spec for spec in ordered if spec.embedding and spec.elements > share] if cut_embeddings else []
    cut = _cut_tables(tables, fragments, share)
    first = max(len(cut) - 1, 0)  # the last fragment of the tables may have tensors besides its part
    bins: list[list[TensorSpec]] = [[] for _ in range(fragments)]
    filled = [sum(part.elements for part in parts) for parts in cut] + [0] * (fragments - len(cut))
    for spec in ordered:
        if spec not in tables:
            smallest = filled.index(min(filled[first:]), first)
            bins[smallest].append(spec)
            filled[smallest] += spec.elements
    if 0 in filled:
        raise UsageError(f"a model of such tensors cannot be cut into {fragments} fragments; lower pace.fragments")
    layouts = tuple(
        FragmentLayout(index, (*(cut[index] if index < len(cut) else ()), *sorted(rest, key=lambda spec: spec.name)))
        for index, rest in enumerate(bins)
    )
    if (most := max(len(layout.tensors) for layout in layouts)) > FRAGMENT_TENSORS_MAX:
        raise UsageError(
            f"a fragment would have {most} tensors, more than {FRAGMENT_TENSORS_MAX}; raise pace.fragments"
        )
    return layouts


def _cut_tables(tables: Sequence[TensorSpec], fragments: int, share: float) -> list[list[TensorSpec]]:
    """Return for each fragment its parts of these tables; the last of them has room left."""
    cut: list[list[TensorSpec]] = []
    room = 0.0
    for table in tables:
        done = 0
        while done < table.rows:
            if room < table.row_elements / 2 and len(cut) < fragments:
                cut.append([])
                room = share
            rows = min(table.rows - done, max(1, round(room / table.row_elements)))
            rows = table.rows - done if len(cut) == fragments else rows
            cut[-1].append(table.part(done, rows))
            done, room = done + rows, room - rows * table.row_elements
    return cut


def partition_bounds(layout: FragmentLayout, partitions: int) -> tuple[int, ...]:
    """Return `partitions + 1` cuts of the flat fragment, from 0 to `layout.elements`: equal parts except for rows.

    Each cut is the row boundary nearest to the ideal one (a row is one index of a tensor's first dimension). A
    partition is empty only if the fragment has fewer rows than partitions.
    """
    if partitions < 1:
        raise ValueError("a fragment has at least one partition")
    first_rows = tuple(accumulate((tensor.rows for tensor in layout.tensors), initial=0))
    rows, at_least = first_rows[-1], 1 if first_rows[-1] >= partitions else 0
    cuts = [0]
    for cut in range(1, partitions):
        nearest = _nearest_row(layout, first_rows, layout.elements * cut, partitions)
        cuts.append(min(max(nearest, cuts[-1] + at_least), rows - (partitions - cut) * at_least))
    cuts.append(rows)
    return tuple(_row_start(layout, first_rows, row) for row in cuts)


def segments(layout: FragmentLayout, bounds: Sequence[int]) -> tuple[Segment, ...]:
    """Return every non-empty overlap of a partition with a tensor, ordered by (partition, tensor)."""
    offsets = layout.offsets
    overlaps = (
        Segment(partition, tensor, max(low, offsets[tensor]), min(high, offsets[tensor + 1]))
        for partition, (low, high) in enumerate(pairwise(bounds))
        for tensor in range(len(layout.tensors))
    )
    return tuple(segment for segment in overlaps if segment.start < segment.stop)


def fragment_spans(fragments: Sequence[FragmentLayout]) -> tuple[slice, ...]:
    """Return where each fragment lies in a flat vector of all parameters."""
    ends = accumulate(layout.elements for layout in fragments)
    return tuple(slice(end - layout.elements, end) for layout, end in zip(fragments, ends, strict=True))


def fragment_views(parameters: Tensor, fragments: Sequence[FragmentLayout]) -> tuple[Tensor, ...]:
    """Cut a flat vector of all parameters into its fragments, without copying."""
    return tuple(parameters[span] for span in fragment_spans(fragments))


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a module by name, shared ones once."""
    return dict(module.named_parameters())


def gather(layout: FragmentLayout, tensors: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
    """Copy a fragment out of `tensors`: float32[layout.elements] on the CPU, into `out` if given."""
    vector = torch.empty(layout.elements, dtype=torch.float32) if out is None else out
    if vector.shape != (layout.elements,):
        raise ValueError(f"a vector of shape {tuple(vector.shape)} cannot hold {layout.elements} elements")
    for source, piece in paired(layout, vector, tensors):
        piece.copy_(source.detach())
    return vector


def scatter(layout: FragmentLayout, vector: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Copy a flat fragment into `tensors` in place, whatever their device and type; autograd does not see it."""
    if vector.shape != (layout.elements,):
        raise ValueError(f"a vector of shape {tuple(vector.shape)} is not a fragment of {layout.elements} elements")
    for target, piece in paired(layout, vector, tensors):
        target.detach().copy_(piece)


def paired(layout: FragmentLayout, vector: Tensor, tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each of the fragment's `tensors` with its view of the flat `vector`; raises UsageError if one is missing."""
    pairs = []
    for spec, start in zip(layout.tensors, layout.offsets, strict=False):
        tensor = tensors.get(spec.name)
        if tensor is None or tuple(tensor.shape) != spec.whole_shape:
            shape = spec.whole_shape
            raise UsageError(f"the model has no tensor {spec.name} of shape {shape}; it is not the run's model")
        pairs.append((spec.of(tensor), vector[start : start + spec.elements].view(spec.shape)))
    return pairs


def whole_tensors(fragments: Sequence[FragmentLayout], vectors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return all tensors by name, as views of the flat fragments; only tensors that were cut are copied."""
    parts: dict[str, list[Tensor]] = {}
    for layout, vector in zip(fragments, vectors, strict=True):
        for spec, start in zip(layout.tensors, layout.offsets, strict=False):
            parts.setdefault(spec.name, []).append(vector[start : start + spec.elements].view(spec.shape))
    return {name: found[0] if len(found) == 1 else torch.cat(found) for name, found in parts.items()}


def _nearest_row(layout: FragmentLayout, first_rows: Sequence[int], numerator: int, denominator: int) -> int:
    """Return the row boundary, counted over the fragment, nearest to position numerator/denominator; ties go down."""
    for tensor, offset, first in zip(layout.tensors, layout.offsets, first_rows, strict=False):
        inside, step = numerator - offset * denominator, tensor.row_elements * denominator
        if inside <= tensor.rows * step:
            return first + (2 * inside + step - 1) // (2 * step)
    return first_rows[-1]


def _row_start(layout: FragmentLayout, first_rows: Sequence[int], row: int) -> int:
    for tensor, offset, first in zip(layout.tensors, layout.offsets, first_rows, strict=False):
        if row <= first + tensor.rows:
            return offset + (row - first) * tensor.row_elements
    return layout.elements
