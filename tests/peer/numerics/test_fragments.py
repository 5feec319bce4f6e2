from __future__ import annotations

import random
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.wire.messages import SEGMENTS_MAX
from coordinator.wire.openings import PARTITIONS_MAX
from dht.errors import UsageError
from peer.numerics.fragments import (
    FRAGMENT_TENSORS_MAX,
    FragmentLayout,
    Partitioning,
    TensorSpec,
    gather,
    named_tensors,
    partition_bounds,
    scatter,
    segments,
    split_fragments,
)

torch.set_num_threads(1)

shapes = st.lists(st.integers(1, 9), max_size=3).map(tuple)
tensor_lists = st.lists(shapes, min_size=1, max_size=8).map(
    lambda found: tuple(TensorSpec(f"t{index}", shape) for index, shape in enumerate(found))
)
layouts = tensor_lists.map(lambda tensors: FragmentLayout(0, tensors))
partition_counts = st.integers(1, 12)


def test_a_fragment_has_no_more_tensors_than_a_commitment_has_norms_for():
    """A run with such a fragment never made a version: all refused the honest commitments as too long."""
    specs = [TensorSpec(f"t{index}", (2,)) for index in range(FRAGMENT_TENSORS_MAX + 1)]
    with pytest.raises(UsageError, match=r"raise pace\.fragments"):
        split_fragments(specs, 1)
    split = split_fragments(specs, 2)
    (whole,) = split_fragments(specs[1:], 1)
    assert [len(one.tensors) for one in split] == [(FRAGMENT_TENSORS_MAX + 2) // 2, (FRAGMENT_TENSORS_MAX + 1) // 2]
    assert len(segments(whole, partition_bounds(whole, PARTITIONS_MAX))) <= SEGMENTS_MAX


@given(tensor_lists, st.integers(1, 8), st.randoms(use_true_random=False))
def test_every_tensor_is_in_one_fragment_whatever_the_order(specs, fragments, rng):
    """Every tensor exactly once, identical on all workers."""
    fragments = min(fragments, len(specs))
    split = split_fragments(specs, fragments)
    assert sorted(spec.name for layout in split for spec in layout.tensors) == sorted(spec.name for spec in specs)
    assert [layout.index for layout in split] == list(range(fragments))
    assert all(layout.tensors for layout in split)
    shuffled = list(specs)
    rng.shuffle(shuffled)
    assert split_fragments(shuffled, fragments) == split


def test_the_largest_fragment_is_within_four_thirds_of_the_best_split():
    """A greedy partition: the largest bin is at most 4/3 of the best."""
    rng = random.Random(7)
    for _ in range(30):
        sizes = [rng.randint(1, 40) for _ in range(rng.randint(3, 7))]
        specs = [TensorSpec(f"t{index}", (size,)) for index, size in enumerate(sizes)]
        best = min(
            max(sum(size for size, home in zip(sizes, homes, strict=True) if home == index) for index in range(3))
            for homes in product(range(3), repeat=len(sizes))
        )
        assert max(layout.elements for layout in split_fragments(specs, 3)) <= best * 4 / 3


def test_ties_go_to_the_lower_name_and_the_lower_fragment():
    specs = [TensorSpec(name, (2, 2)) for name in ("d", "b", "c", "a")]
    split = split_fragments(specs, 2)
    assert [[spec.name for spec in layout.tensors] for layout in split] == [["a", "c"], ["b", "d"]]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.integers(1, 6)), min_size=1, max_size=8), st.integers(1, 8)
)
def test_embeddings_are_cut_between_rows_into_even_fragments(drawn, fragments):
    specs = [TensorSpec(f"t{at}", (rows, width), is_table) for at, (is_table, rows, width) in enumerate(drawn)]
    fragments = min(fragments, len(specs))
    split, share = split_fragments(specs, fragments, True), sum(spec.elements for spec in specs) / fragments
    assert all(layout.tensors for layout in split)
    line = [part for layout in split for part in layout.tensors]
    for spec in specs:
        places = [at for at, part in enumerate(line) if part.name == spec.name]
        rows = [row for at in places for row in range(line[at].first_row, line[at].first_row + line[at].rows)]
        assert rows == list(range(spec.rows)), "every row once, in order"
        assert places == list(range(places[0], places[-1] + 1)), "and nothing between them"
        assert len(places) == 1 or (spec.embedding and spec.elements > share)
        assert all(line[at].whole_shape == spec.shape for at in places)
    uncut = max((spec.elements for spec in specs if not (spec.embedding and spec.elements > share)), default=0)
    assert max(layout.elements for layout in split) <= share + max(uncut, 2 * max(width for _, _, width in drawn))
    if not any(spec.embedding and spec.elements > share for spec in specs):
        assert split == split_fragments(specs, fragments)


def test_a_split_that_cannot_work_is_refused():
    specs = [TensorSpec("a", (2,)), TensorSpec("b", (2,))]
    with pytest.raises(UsageError, match="2 tensors cannot be cut into 3 fragments"):
        split_fragments(specs, 3)
    with pytest.raises(ValueError, match="distinct"):
        split_fragments([specs[0], specs[0]], 1)
    with pytest.raises(ValueError, match="holds nothing"):
        TensorSpec("c", (3, 0))


def row_boundaries(layout):
    return sorted(
        {
            offset + row * tensor.row_elements
            for tensor, offset in zip(layout.tensors, layout.offsets, strict=False)
            for row in range(tensor.rows + 1)
        }
    )


@given(layouts, partition_counts)
def test_cuts_lie_on_row_boundaries_and_leave_no_partition_empty(layout, partitions):
    bounds = partition_bounds(layout, partitions)
    boundaries = row_boundaries(layout)
    assert len(bounds) == partitions + 1
    assert (bounds[0], bounds[-1]) == (0, layout.elements)
    assert set(bounds) <= set(boundaries)
    assert all(low <= high for low, high in pairwise(bounds))
    if len(boundaries) - 1 >= partitions:
        assert all(low < high for low, high in pairwise(bounds))


@given(st.integers(1, 40), st.integers(1, 6), partition_counts)
def test_cuts_are_as_even_as_rows_allow(rows, width, partitions):
    layout = FragmentLayout(0, (TensorSpec("a", (rows, width)),))
    bounds = partition_bounds(layout, partitions)
    if rows >= partitions:
        for index, cut in enumerate(bounds):
            assert abs(cut - layout.elements * index / partitions) <= width / 2


def test_one_wide_row_before_many_narrow_ones():
    layout = FragmentLayout(0, (TensorSpec("wide", (1, 1000)), TensorSpec("narrow", (3,))))
    assert partition_bounds(layout, 4) == (0, 1000, 1001, 1002, 1003)
    assert partition_bounds(layout, 2) == (0, 1000, 1003)


def test_fewer_rows_than_partitions_leaves_some_empty():
    layout = FragmentLayout(0, (TensorSpec("a", (2, 5)),))
    bounds = partition_bounds(layout, 4)
    assert set(bounds) == {0, 5, 10}
    assert len(segments(layout, bounds)) == 2


@given(layouts, partition_counts)
def test_segments_tile_the_fragment_in_order(layout, partitions):
    cut = Partitioning.of(layout, partitions)
    assert [segment.start for segment in cut.segments] == [0, *(segment.stop for segment in cut.segments[:-1])]
    assert cut.segments[-1].stop == layout.elements
    keys = [(segment.partition, segment.tensor) for segment in cut.segments]
    assert keys == sorted(set(keys))
    for segment in cut.segments:
        span = cut.span(segment.partition)
        assert span.start <= segment.start < segment.stop <= span.stop
        assert layout.offsets[segment.tensor] <= segment.start
        assert segment.stop <= layout.offsets[segment.tensor + 1]
    for partition in range(partitions):
        own = cut.segments[cut.segment_span(partition)]
        assert own == tuple(segment for segment in cut.segments if segment.partition == partition)
        assert sum(segment.stop - segment.start for segment in own) == cut.elements(partition)
    sizes = [float(segment.stop - segment.start) for segment in cut.segments]
    assert cut.tensor_sums(sizes) == tuple(float(tensor.elements) for tensor in layout.tensors)


def test_gather_and_scatter_copy_without_autograd():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).to(torch.bfloat16))
    tensors = named_tensors(module)
    layout = split_fragments([TensorSpec(name, tuple(t.shape)) for name, t in tensors.items()], 1)[0]
    vector = gather(layout, tensors)
    assert vector.dtype == torch.float32
    assert not vector.requires_grad
    expected = torch.cat([tensors[spec.name].detach().float().reshape(-1) for spec in layout.tensors])
    assert torch.equal(vector, expected)

    wanted = torch.arange(layout.elements, dtype=torch.float32)
    scatter(layout, wanted, tensors)
    assert torch.equal(vector, expected), "gather must have copied"
    room = torch.empty(layout.elements)
    assert gather(layout, tensors, out=room) is room
    assert torch.equal(room, wanted)
    wanted.zero_()
    assert torch.equal(gather(layout, tensors), room), "scatter must have copied"


def test_shared_parameters_are_listed_once():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    assert list(named_tensors(module)) == ["0.weight"]


def test_a_model_that_does_not_fit_is_refused():
    layout = FragmentLayout(0, (TensorSpec("a", (2, 3)),))
    for tensors in ({}, {"a": torch.zeros(3, 2)}):
        with pytest.raises(UsageError, match="no tensor a of shape"):
            gather(layout, tensors)
    with pytest.raises(ValueError, match="cannot hold 6"):
        gather(layout, {"a": torch.zeros(2, 3)}, out=torch.empty(5))
    with pytest.raises(ValueError, match="fragment of 6"):
        scatter(layout, torch.zeros(2, 3), {"a": torch.zeros(2, 3)})
