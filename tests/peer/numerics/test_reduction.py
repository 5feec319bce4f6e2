from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.wire.merkle import merkle_tree, verify_leaf
from dht.errors import LocalError
from peer.numerics import outer_step as merged_step
from peer.numerics.codec import CODECS
from peer.numerics.fragments import FragmentLayout, Partitioning, TensorSpec
from peer.numerics.merge import MERGES, combine, squared_norm
from peer.numerics.outer_optimizer import OuterState, outer_step
from peer.numerics.outer_step import AgreedResult, apply_merged, joined
from peer.numerics.reduction import (
    NORM_TOLERANCE,
    Admitted,
    admit,
    encode_contribution,
    is_measurable,
    measure,
    merge_plan,
    segment_inputs,
    segment_norms,
)
from peer.numerics.robust.segments import merge_segment
from tests.peer.merging import (
    FP32,
    LAYOUT,
    Committed,
    Made,
    contribute,
    draws,
    members_of,
    merge_all,
    merged_gradients,
    reduce_all,
    reduce_partition,
    relative,
)
from tests.peer.reference import reference_mean, reference_rda

torch.set_num_threads(1)
INT8, INT4 = CODECS["int8"], CODECS["int4"]
RDA, MEAN = MERGES["rda"], MERGES["mean"]

shapes = st.lists(st.integers(1, 7), max_size=3).map(tuple)
layouts = st.lists(st.tuples(shapes, st.booleans()), min_size=1, max_size=6).map(
    lambda found: FragmentLayout(0, tuple(TensorSpec(f"t{n}", shape, emb) for n, (shape, emb) in enumerate(found)))
)

weight_lists = st.lists(st.integers(1, 1000).map(float), min_size=1, max_size=6)


@given(layouts, weight_lists, st.integers(1, 9), st.integers(0, 99))
def test_the_segment_form_is_the_reference_merge(layout, weights, partitions, seed):
    vectors = draws(layout, len(weights), seed)
    cut = Partitioning.of(layout, partitions)
    # measured against the inputs' length: where they cancel, what is left of them is rounding on either side
    size = max(float(vector.norm()) for vector in vectors)
    for rule, expected in ((MEAN, reference_mean(vectors, weights)), (RDA, reference_rda(layout, vectors, weights))):
        assert float((merge_all(vectors, weights, rule, cut).double() - expected).norm()) < 1e-6 * size


@given(layouts, weight_lists, st.integers(2, 9), st.integers(0, 99))
def test_the_mean_is_the_same_bytes_for_every_partition_count(layout, weights, partitions, seed):
    vectors = draws(layout, len(weights), seed)
    whole = merge_all(vectors, weights, MEAN, Partitioning.of(layout, 1))
    assert torch.equal(merge_all(vectors, weights, MEAN, Partitioning.of(layout, partitions)), whole)


@pytest.mark.parametrize("rule", [MEAN, RDA])
@pytest.mark.parametrize("codec", [FP32, INT4])
def test_no_thread_count_changes_a_byte(rule, codec):
    layout = FragmentLayout(0, (TensorSpec("a", (300, 512)),))
    cut, vectors, outcomes = Partitioning.of(layout, 2), draws(layout, 3), set()
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        contributions = contribute(vectors, cut, codec)
        members = members_of(contributions, [1.0, 2.0, 3.0])
        results = reduce_all(contributions, members, rule, cut, codec)
        merged = joined(merged_gradients(cut, results, members, rule, codec), cut)
        outcomes.add((*(result.root for result in results), merged.numpy().tobytes()))
    torch.set_num_threads(1)
    assert len(outcomes) == 1


@pytest.mark.parametrize("length", [1e-30, 1e-19, 1.0, 1e14])
def test_a_told_norm_is_close_however_short_or_long_a_gradient_is(length):
    """It is so even where squares underflow in float32, and over spans that end within segments."""
    layout = FragmentLayout(0, (TensorSpec("a", (1, 150_001)), TensorSpec("b", (1, 49_999))))
    cut, vector = Partitioning.of(layout, 1), length * draws(layout, 1)[0]
    made = encode_contribution(vector.__getitem__, cut, FP32)
    for segment, norm in zip(cut.segments, made.squared_norms, strict=True):
        exact = float(vector[segment.start : segment.stop].double().square().sum())
        assert norm == pytest.approx(exact, rel=NORM_TOLERANCE / 100)
    assert not isinstance(admit(made.parts[0], made.squared_norms, cut, 0, FP32), str)


@pytest.mark.parametrize("name", CODECS)
def test_a_contribution_commits_to_its_decoded_bytes(name):
    cut, codec = Partitioning.of(LAYOUT, 3), CODECS[name]
    vector = draws(LAYOUT, 1)[0]
    contribution = Made.of(vector, cut, codec)
    assert len(contribution.parts) == len(contribution.part_roots) == 3
    assert len(contribution.squared_norms) == len(cut.segments)
    for partition, (part, root) in enumerate(zip(contribution.parts, contribution.part_roots, strict=True)):
        assert root == merkle_tree(part, codec.leaf_bytes).root
        decoded = codec.decode(part, cut.elements(partition))
        assert torch.equal(decoded, contribution.decoded[cut.span(partition)])
        own = contribution.squared_norms[cut.segment_span(partition)]
        admitted = admit(part, own, cut, partition, codec)
        assert torch.equal(admitted.vector, decoded)
        assert admitted.squared_norms == own
    for segment, norm in zip(cut.segments, contribution.squared_norms, strict=True):
        exact = float(contribution.decoded[segment.start : segment.stop].double().square().sum())
        assert norm == pytest.approx(exact, rel=NORM_TOLERANCE / 100)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_diverged_outer_gradient_is_our_own_fault(value):
    vector = draws(LAYOUT, 1)[0]
    vector[5] = value
    with pytest.raises(LocalError):
        contribute([vector], Partitioning.of(LAYOUT, 2))


class TestAdmission:
    cut = Partitioning.of(LAYOUT, 2)

    def committed(self, codec=FP32) -> tuple[bytes, tuple[float, ...]]:
        contribution = Made.of(draws(LAYOUT, 1)[0], self.cut, codec)
        return contribution.parts[1], contribution.squared_norms[self.cut.segment_span(1)]

    def test_a_wrong_length(self):
        part, norms = self.committed()
        assert admit(part[:-4], norms, self.cut, 1, FP32) == "wrong length"

    @pytest.mark.parametrize("codec", [FP32, CODECS["fp16"], INT8, INT4])
    def test_committed_garbage(self, codec):
        part, norms = self.committed(codec)
        garbage = b"\xff" * len(part)
        reason = admit(garbage, norms, self.cut, 1, codec)
        assert isinstance(reason, str)
        assert "not finite" in reason
        assert not is_measurable(garbage, self.cut, 1, codec)

    @pytest.mark.parametrize("codec", [FP32, INT8])
    @pytest.mark.parametrize("length", [1e-3, 1e17, 0.99e18, 1.01e18])
    def test_a_part_is_known_to_be_measurable_without_measuring(self, codec, length):
        vector = torch.zeros(self.cut.elements(1))
        vector[0] = length
        part = codec.encode(vector)
        assert is_measurable(part, self.cut, 1, codec) is not isinstance(measure(part, self.cut, 1, codec), str)
        assert is_measurable(part, self.cut, 1, codec) is (length < 1e18)
        assert not is_measurable(part[:-1], self.cut, 1, codec)

    @given(st.floats(1e-3, 1e3).filter(lambda factor: abs(factor - 1) > 1e-3), st.data())
    def test_a_norm_that_is_not_as_committed(self, factor, data):
        part, norms = self.committed()
        at = data.draw(st.integers(0, len(norms) - 1))
        lie = (*norms[:at], norms[at] * factor, *norms[at + 1 :])
        assert admit(part, lie, self.cut, 1, FP32) == "a norm is not as committed"

    @pytest.mark.parametrize("lie", [float("nan"), float("inf"), -1.0, 0.0])
    def test_a_norm_that_cannot_be(self, lie):
        part, norms = self.committed()
        assert admit(part, (lie, *norms[1:]), self.cut, 1, FP32) == "a norm is not as committed"

    def test_a_missing_norm(self):
        part, norms = self.committed()
        assert admit(part, norms[1:], self.cut, 1, FP32) == "wrong number of norms"

    def test_a_norm_measured_in_another_order_is_fine(self):
        part, norms = self.committed()
        nearly = tuple(norm * (1 + 1e-6) for norm in norms)
        assert not isinstance(admit(part, nearly, self.cut, 1, FP32), str)

    @pytest.mark.parametrize("length", [1e-25, 1e-19, 1e-3, 1e12, 1e17])
    @pytest.mark.parametrize("off", [0.0, 4e-5, 6e-5, 9.9e-5, 1.02e-4, 2e-4])
    def test_a_rough_look_at_a_norm_decides_as_the_exact_one(self, length, off):
        vector = draws(LAYOUT, 1)[0][self.cut.span(1)]
        part = FP32.encode(vector * (length / float(vector.norm())))
        norms = segment_norms(FP32.decode(part, len(vector)), self.cut, 1)
        for factor in (1 + off, 1 - off):
            refused = admit(part, tuple(factor * norm for norm in norms), self.cut, 1, FP32)
            assert isinstance(refused, str) is (off > NORM_TOLERANCE)

    def test_absurd_size_even_if_true(self):
        vector = draws(LAYOUT, 1)[0] * 1e20
        part = FP32.encode(vector[self.cut.span(1)])
        norms = tuple(
            squared_norm(vector[segment.start : segment.stop])
            for segment in self.cut.segments[self.cut.segment_span(1)]
        )
        assert admit(part, norms, self.cut, 1, FP32) == "a value is not finite, or absurdly large"

    def test_zeros_are_a_contribution(self):
        contribution = Made.of(torch.zeros(LAYOUT.elements), self.cut, INT4)
        norms = contribution.squared_norms[self.cut.segment_span(0)]
        admitted = admit(contribution.parts[0], norms, self.cut, 0, INT4)
        assert torch.equal(admitted.vector, torch.zeros(self.cut.elements(0)))


def test_a_result_is_admitted_like_a_contribution_and_reports_its_error():
    cut, weights = Partitioning.of(LAYOUT, 3), [1.0, 2.0]
    contributions = contribute(draws(LAYOUT, 2), cut)
    members = members_of(contributions, weights)
    exact = reduce_all(contributions, members, RDA, cut)
    for partition, result in enumerate(reduce_all(contributions, members, RDA, cut, INT4)):
        decoded = admit(result.data, result.squared_norms, cut, partition, INT4).vector
        wanted = FP32.decode(exact[partition].data, cut.elements(partition))
        assert result.encoding_error == pytest.approx(relative(decoded, wanted), rel=1e-5)
        assert exact[partition].encoding_error == 0
        assert result.included == (0, 1)
        segments = cut.segment_span(partition)
        assert result.coefficients == pytest.approx((1 / 3, 2 / 3) * (segments.stop - segments.start))


def test_a_missing_part_is_left_out_and_not_a_zero():
    cut, vectors = Partitioning.of(LAYOUT, 2), draws(LAYOUT, 3)
    contributions = contribute(vectors, cut)
    members = members_of(contributions, [1.0, 2.0, 4.0])
    results = reduce_all(contributions, members, MEAN, cut, leave_out={(0, 1)})
    assert [result.included for result in results] == [(0, 2), (0, 1, 2)]
    merged = joined(merged_gradients(cut, results, members, MEAN), cut)
    first, second = cut.span(0), cut.span(1)
    assert relative(merged[first], reference_mean([vectors[0], vectors[2]], [1.0, 4.0])[first]) < 1e-6
    assert relative(merged[second], reference_mean(vectors, [1.0, 2.0, 4.0])[second]) < 1e-6


@pytest.mark.parametrize("rule", MERGES.values(), ids=MERGES)
def test_one_leaf_recomputes_alone_bit_for_bit(rule):
    """The exact spot check (design §6.2 step 8): open every input for one leaf's elements, combine, encode, compare."""
    layout = FragmentLayout(0, (TensorSpec("a", (61, 64)), TensorSpec("b", (99, 64), embedding=True)))
    cut = Partitioning.of(layout, 3)
    contributions = contribute(draws(layout, 4), cut, INT8)
    members = members_of(contributions, [1.0, 2.0, 3.0, 4.0])
    for partition, result in enumerate(reduce_all(contributions, members, rule, cut, INT4)):
        segments = segment_inputs([members[member] for member in result.included], rule, cut, partition)
        assert len(result.coefficients) in (0, 4 * len(segments))
        tree = merkle_tree(result.data, INT4.leaf_bytes)
        for index in range(len(tree.leaves)):
            window = slice(index * INT4.leaf_elements, min((index + 1) * INT4.leaf_elements, cut.elements(partition)))
            opened = [contribution.decoded[cut.span(partition)][window] for contribution in contributions]
            if rule.name == "nnm_trimmed_mean":
                continue  # it mixes whole segments first: only a second reduction can check it
            if result.coefficients:
                plan = merge_plan(rule.name, segments, result.coefficients, len(result.included))
                merged = combine(opened, *plan.windows([window]))
            else:  # by coordinate
                [(_, inputs), *_] = segments
                merged = merge_segment(rule, opened, inputs).vector
            leaf = INT4.encode(merged)
            assert verify_leaf(tree.root, leaf, index, len(tree.leaves), tree.path(index))


def test_cancelling_and_zero_inputs_stay_finite_and_zero():
    cut, vector = Partitioning.of(LAYOUT, 3), draws(LAYOUT, 1)[0]
    embedding = slice(0, LAYOUT.tensors[0].elements)
    for vectors in ([vector, -vector], [vector * 0, vector * 0]):
        merged = merge_all(vectors, [0.1, 0.1], RDA, cut)
        assert not merged.any()
    merged = merge_all([vector, -vector, vector * 0], [0.1 + 0.2, 0.3, 1.0], RDA, cut)
    assert not merged[embedding.stop :].any(), "rounding noise must not be blown up to full length"


def test_a_length_is_the_same_under_every_python() -> None:
    """From Python 3.12 on, `sum` compensates the rounding of floats; only there would two of these squares count.

    Their exact sum and the one from left to right have roots that round to two float32 values.
    """
    cut = Partitioning.of(FragmentLayout(0, (TensorSpec("a", (3, 1)),)), 3)
    square = float.fromhex("0x1.2000018000008p+1")
    member = Committed(1.0, (square, math.ulp(square) / 2, math.ulp(square) / 2))
    held = [AgreedResult(Admitted(torch.ones(1), (one,)), (0,)) for one in (1.0, 0.0, 0.0)]
    _, scales = merged_step.merged_gradients(cut, held, lambda merged: [member], RDA)
    assert scales[0] == np.float32(math.sqrt(math.nextafter(square, math.inf))) != np.float32(math.sqrt(square))


class TestVoidPartitions:
    layout = FragmentLayout(0, (TensorSpec("a", (64, 32)), TensorSpec("b", (16, 32))))
    cut = Partitioning.of(layout, 4)

    def merged(self, void) -> list[torch.Tensor | None]:
        contributions = contribute(draws(self.layout, 6), self.cut)
        members = members_of(contributions, [1.0] * 6)
        results = reduce_all(contributions, members, RDA, self.cut)
        held = [None if partition in void else result for partition, result in enumerate(results)]
        return merged_gradients(self.cut, held, members, RDA)

    def test_the_rest_of_a_torn_tensor_keeps_its_length(self):
        complete, torn = (joined(self.merged(void), self.cut) for void in (set(), {1}))
        span = self.cut.span(1)
        assert not torn[span].any()
        live = torch.ones(self.layout.elements, dtype=torch.bool)
        live[span] = False
        ratio = (torn[live].norm() / complete[live].norm()).item()
        assert ratio == pytest.approx(1, abs=0.05)
        whole = self.layout.offsets[1]
        untouched = self.cut.bounds[3] if self.cut.bounds[3] > whole else whole
        assert torch.equal(torn[untouched:], complete[untouched:])

    def test_a_wholly_void_tensor_is_zero(self):
        assert not joined(self.merged({0, 1, 2, 3}), self.cut).any()

    def test_a_tensor_of_which_no_input_holds_the_live_part_gets_nothing(self):
        layout = FragmentLayout(0, (TensorSpec("a", (2, 4)),))
        cut = Partitioning.of(layout, 2)
        contributions = contribute([torch.tensor([0.0] * 4 + [1.0] * 4)] * 3, cut)
        members = members_of(contributions, [1.0] * 3)
        results = reduce_all(contributions, members, RDA, cut)
        assert not joined(merged_gradients(cut, [results[0], None], members, RDA), cut).any()

    def test_frozen_partitions_stay_bit_for_bit(self):
        anchor, momentum = draws(self.layout, 2, seed=9)
        state, merged = OuterState(anchor, momentum), self.merged({1})
        new = apply_merged(state, merged, self.cut, (0.5, 0.8))
        whole = outer_step(state, joined(merged, self.cut), 0.5, 0.8)
        for partition in range(4):
            span = self.cut.span(partition)
            expected = state if partition == 1 else whole
            assert torch.equal(new.anchor[span], expected.anchor[span])
            assert torch.equal(new.momentum[span], expected.momentum[span])
        assert torch.equal(anchor, draws(self.layout, 2, seed=9)[0])

    def test_without_void_partitions_it_is_the_outer_step(self):
        anchor, momentum = draws(self.layout, 2, seed=9)
        state, merged = OuterState(anchor, momentum), self.merged(set())
        new = apply_merged(state, merged, self.cut, (0.5, 0.8))
        whole = outer_step(state, joined(merged, self.cut), 0.5, 0.8)
        assert torch.equal(new.anchor, whole.anchor)
        assert torch.equal(new.momentum, whole.momentum)

    def test_without_decay_a_void_partition_leaves_no_momentum(self):
        anchor, _ = draws(self.layout, 2, seed=9)
        merged = self.merged({1})
        new = apply_merged(OuterState.begin(anchor, 0.0), merged, self.cut, (0.5, 0.0))
        whole = outer_step(OuterState.begin(anchor, 0.0), joined(merged, self.cut), 0.5, 0.0)
        assert torch.equal(new.anchor, whole.anchor)
        assert new.digest == whole.digest


@pytest.mark.parametrize("rule", MERGES.values(), ids=MERGES)
@pytest.mark.parametrize("same", [False, True])
def test_the_largest_admitted_inputs_do_not_overflow(rule, same):
    """No admitted input may stop a reducer, or make its result, or the state after many rounds, infinite."""
    cut = Partitioning.of(LAYOUT, 1 if same else 2)
    longest, weights = [vector / vector.norm() * 0.9e18 for vector in draws(LAYOUT, 5)], [1e-9, 1.0, 1.0, 3.0, 1e12]
    if same:  # all but one in one place, the last as far away as can be: differences are twice as long
        longest, weights = [torch.zeros(LAYOUT.elements) for _ in range(5)], [1.0] * 5
        for index, vector in enumerate(longest):
            vector[[0, 160, 176]] = 0.9999e18 if index < 4 else -0.9999e18
    merged = merge_all(longest, weights, rule, cut)
    state = OuterState(torch.zeros(LAYOUT.elements), torch.zeros(LAYOUT.elements))
    for _ in range(50):
        state = apply_merged(state, [merged[span] for span in cut.spans], cut, (10.0, 0.9))
    assert torch.isfinite(state.anchor).all()
    assert merged.any()


@pytest.mark.parametrize("rule", MERGES.values(), ids=MERGES)
def test_members_without_weight_change_nothing(rule):
    cut, vectors = Partitioning.of(LAYOUT, 2), draws(LAYOUT, 3)
    assert torch.equal(merge_all(vectors, [1.0, 2.0, 0.0], rule, cut), merge_all(vectors[:2], [1.0, 2.0], rule, cut))


def test_the_rest_that_encoding_cuts_off_is_left():
    cut, vector = Partitioning.of(LAYOUT, 3), draws(LAYOUT, 1)[0]
    left = torch.empty_like(vector)
    encode_contribution(vector.__getitem__, cut, INT4, left)
    assert torch.equal(left, vector - Made.of(vector, cut, INT4).decoded)


@settings(max_examples=20)
@given(st.permutations(range(4)))
def test_the_order_of_arrival_does_not_matter(order):
    cut = Partitioning.of(LAYOUT, 2)
    contributions = contribute(draws(LAYOUT, 4), cut)
    members = members_of(contributions, [1.0, 2.0, 3.0, 4.0])
    arrived = {index: contributions[index].decoded[cut.span(0)] for index in order}
    assert (
        reduce_partition(arrived, members, RDA, cut, 0, INT8) == reduce_all(contributions, members, RDA, cut, INT8)[0]
    )
