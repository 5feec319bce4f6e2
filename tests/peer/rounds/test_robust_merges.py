"""Merge rules on the wired path: encoded, admitted, reduced in partitions, put together (design §6.2 step 6, §7)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coordinator.chain.weights import limit_of
from peer.numerics.codec import CODECS
from peer.numerics.fragments import FragmentLayout, Partitioning, TensorSpec
from peer.numerics.merge import MERGES, MergeRule
from peer.numerics.outer_step import joined
from peer.numerics.reduction import admit
from tests.extra import extra
from tests.peer.merging import (
    FP32,
    contribute,
    members_of,
    merge_all,
    merged_gradients,
    reduce_all,
    reduce_partition,
    relative,
)

torch.set_num_threads(1)
RULES = [pytest.param(rule, id=name) for name, rule in MERGES.items()]
LAYOUT = FragmentLayout(
    0, (TensorSpec("embedding", (40, 16), embedding=True), TensorSpec("gain", (16,)), TensorSpec("matrix", (90, 16)))
)
EXACT_ANYWHERE = ("mean", "rda", "median", "trimmed_mean")  # cutting a tensor changes nothing but rounding
ROUNDING = 2e-5  # relative; float32 sums in another order, and coefficients that were rounded to float32
STRENGTHS = (0.0, 1e-9, 0.3, 1.0, 1.3, 4.0, 1e3, 1e15)  # times the length that the honest have
SPREAD = 1.0  # of honest directions: the length of each one's own part over that of the common part


def cloud(count: int, seed: int) -> list[Tensor]:
    """Return honest outer gradients: one common direction per tensor, noise as long as it, and differing lengths."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(LAYOUT.elements, generator=generator)
    noise = torch.randn(count, LAYOUT.elements, generator=generator) * SPREAD
    lengths = 0.9 + 0.2 * torch.rand(count, 1, generator=generator)
    return list((common + noise) * lengths * 1e-3)


def weights_for(count: int, seed: int) -> list[float]:
    """Return weights within a factor of 1.5 of the median, as truncation leaves them, whatever the speeds."""
    return (0.5 + torch.rand(count, generator=torch.Generator().manual_seed(seed))).tolist()


def tensor_errors(found: Tensor, wanted: Tensor) -> list[float]:
    """Return the distance for each tensor of the fragment."""
    return [float((found[start:stop] - wanted[start:stop]).norm()) for start, stop in pairwise(LAYOUT.offsets)]


def honest_spread(vectors: list[Tensor], centre: Tensor) -> list[float]:
    """Return, per tensor, the root mean squared distance of the honest members to their own merge."""
    squares = [[error**2 for error in tensor_errors(vector, centre)] for vector in vectors]
    return [math.sqrt(sum(column) / len(vectors)) for column in zip(*squares, strict=True)]


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=8)
@given(st.permutations(range(7)), st.integers(1, 5), st.integers(0, 99))
def test_the_order_of_members_changes_only_rounding(rule: MergeRule, order: list[int], partitions: int, seed: int):
    vectors, weights, cut = cloud(7, seed), weights_for(7, seed), Partitioning.of(LAYOUT, partitions)
    shuffled = merge_all([vectors[i] for i in order], [weights[i] for i in order], rule, cut)
    assert relative(shuffled, merge_all(vectors, weights, rule, cut)) < ROUNDING


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=8)
@given(st.integers(-20, 20), st.floats(0.01, 100), st.integers(1, 5), st.integers(0, 99))
def test_scale_passes_through(rule: MergeRule, exponent: int, unit: float, partitions: int, seed: int):
    """Longer inputs give a proportionally longer result; the unit of the weights changes nothing."""
    vectors, weights, cut = cloud(6, seed), weights_for(6, seed), Partitioning.of(LAYOUT, partitions)
    scaled = merge_all([vector * 2.0**exponent for vector in vectors], [unit * w for w in weights], rule, cut)
    assert relative(scaled, merge_all(vectors, weights, rule, cut) * 2.0**exponent) < ROUNDING


@pytest.mark.parametrize("rule", RULES)
@given(st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=10)
def test_spans_over_several_partitions(rule: MergeRule, partitions: int, seed: int):
    """Rules that see a whole segment choose α for each segment; the result stays within the members' spread."""
    vectors, weights = cloud(6, seed), weights_for(6, seed)
    whole = merge_all(vectors, weights, rule, Partitioning.of(LAYOUT, 1))
    cut = merge_all(vectors, weights, rule, Partitioning.of(LAYOUT, partitions))
    if rule.name in EXACT_ANYWHERE:
        assert relative(cut, whole) < ROUNDING
    else:
        spread = honest_spread(vectors, merge_all(vectors, weights, MERGES["mean"], Partitioning.of(LAYOUT, 1)))
        share = 2.0 if rule.name == "krum" else 0.5  # krum takes another member in each segment
        assert all(error < share * own for error, own in zip(tensor_errors(cut, whole), spread, strict=True))


@pytest.mark.parametrize("name", ["rda", "robust_rda"])
@given(st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=10)
def test_by_row_only_matrices_differ(name: str, partitions: int, seed: int):
    """No row is cut, so its reducer gives it its length; members rescale only vectors."""
    vectors, weights, tensor = cloud(6, seed), weights_for(6, seed), MERGES[name]
    row, cut = replace(tensor, by_row=True), Partitioning.of(LAYOUT, partitions)
    found, whole = merge_all(vectors, weights, row, cut), merge_all(vectors, weights, row, Partitioning.of(LAYOUT, 1))
    matrix = LAYOUT.offsets[2]
    assert torch.equal(found[:matrix], merge_all(vectors, weights, tensor, cut)[:matrix])
    lengths = torch.stack([vector[matrix:].view(90, 16).norm(dim=1) for vector in vectors])
    assert (found[matrix:].view(90, 16).norm(dim=1) <= lengths.max(0).values * (1 + 1e-5)).all()
    if name == "rda":
        assert relative(found, whole) < ROUNDING
        average = torch.tensor(weights) @ lengths / sum(weights)
        torch.testing.assert_close(found[matrix:].view(90, 16).norm(dim=1), average)
    contributions = contribute(vectors, cut)
    members = members_of(contributions, weights)
    for partition, result in enumerate(reduce_all(contributions, members, row, cut)):
        holds_rows = any(segment.tensor == 2 for segment in cut.segments[cut.segment_span(partition)])
        assert bool(result.coefficients) != holds_rows


@pytest.mark.parametrize("codec", ["fp32", "int8", "int4"])
@settings(max_examples=10)
@given(st.integers(1, 5), st.integers(0, 999), st.integers(0, 6), st.sampled_from([-10.0, -1.0, 1e3, 1e15]))
def test_two_of_eight_cannot_leave_the_honest_spread(codec: str, partitions: int, seed: int, first: int, factor: float):
    rule, cut = MERGES["robust_rda"], Partitioning.of(LAYOUT, partitions)
    vectors, weights = cloud(8, seed), weights_for(8, seed)
    hostile = {first, first + 1}
    honest = [vector for index, vector in enumerate(vectors) if index not in hostile]
    sent = [vector * factor if index in hostile else vector for index, vector in enumerate(vectors)]
    wanted = merge_all(honest, [w for i, w in enumerate(weights) if i not in hostile], MERGES["rda"], cut)
    found = merge_all(sent, weights, rule, cut, CODECS[codec])
    errors, spread = tensor_errors(found, wanted), honest_spread(honest, wanted)
    assert all(error < own for error, own in zip(errors, spread, strict=True)), (errors, spread)


@st.composite
def attacks(draw: st.DrawFn, members: int, hostile: int) -> Callable[[list[Tensor]], list[Tensor]]:
    """Draw an attack by so many hostile members, who know the honest vectors.

    Each tensor may have any length and direction: towards the honest mean, away from it or askew, the same for all or
    different for each; or they send copies of an honest vector, or it many times longer or reversed; or ALIE.
    """
    kind = draw(st.sampled_from(["together", "apart", "copies", "scaled", "alie"]))
    angle, strength = draw(st.floats(0, math.pi)), draw(st.sampled_from(STRENGTHS))
    seed, victim = draw(st.integers(0, 999)), draw(st.integers(0, members - hostile - 1))

    def send(honest: list[Tensor]) -> list[Tensor]:
        stacked = torch.stack(honest)
        if kind == "copies":
            return [honest[victim]] * hostile
        if kind == "scaled":
            return [strength * math.cos(angle) * honest[victim]] * hostile
        if kind == "alie":
            return [stacked.mean(0) - 5 * angle / math.pi * stacked.std(0)] * hostile
        generator = torch.Generator().manual_seed(seed)
        sides = torch.randn(1 if kind == "together" else hostile, LAYOUT.elements, generator=generator)
        return [askew(stacked, sides[at % len(sides)], angle, strength) for at in range(hostile)]

    return send


def askew(honest: Tensor, side: Tensor, angle: float, strength: float) -> Tensor:
    """Return a vector that has, in each tensor, this angle to the honest mean towards `side`.

    It is `strength` times as long as the median honest vector.
    """
    sent = torch.empty(LAYOUT.elements)
    for start, stop in pairwise(LAYOUT.offsets):
        mean, own = honest[:, start:stop].mean(0), side[start:stop]
        ahead = mean / mean.norm()
        across = own - (own @ ahead) * ahead
        length = strength * honest[:, start:stop].norm(dim=1).median()
        sent[start:stop] = length * (math.cos(angle) * ahead + math.sin(angle) * across / across.norm())
    return sent


@pytest.mark.parametrize("codec", ["int8", *extra(["fp32", "int4"])])
@settings(max_examples=40)
@given(st.data(), st.integers(4, 16), st.integers(0, 999), st.floats(0.03, 1 / 3))
def test_with_a_third_of_the_weight_they_move_it_as_far_as_theory_has_it(
    codec: str, data: st.DataObject, members: int, seed: int, share: float
):
    """Fewer than a third of 4 to 16 members hold a share β ≤ 1/3 of the weight. Whatever they send, in each tensor
    the merge stays within √(2β/(1 − 2β)) honest spreads of the honest members' own `rda`, apart from the error that
    rule and codec have without anybody hostile.

    So κ ≤ 2β/(1 − 2β), twice the least that any rule can have (`peer.numerics.robust.rules`); with two of eight equal
    members that is the honest spread itself. In a group so small that they and the heaviest of the honest hold two
    fifths of the weight, they can make the merge that member's vector: there it stays within 5/4 of how far off the
    farthest of the honest is. More weight than a third is another matter: see the next test.
    """
    hostile = data.draw(st.integers(1, (members - 1) // 3))
    honest, weights = cloud(members - hostile, seed), weights_for(members - hostile, seed)
    sent = data.draw(attacks(members, hostile))(honest)
    order = data.draw(st.permutations(range(members)))
    cut = Partitioning.of(LAYOUT, data.draw(st.integers(1, 5)))
    vectors = [*sent, *honest]
    shares = [share / (1 - share) * sum(weights) / hostile] * hostile + weights
    wanted = merge_all(honest, weights, MERGES["rda"], cut)
    alone = tensor_errors(merge_all(honest, weights, MERGES["robust_rda"], cut, CODECS[codec]), wanted)
    found = merge_all(
        [vectors[at] for at in order], [shares[at] for at in order], MERGES["robust_rda"], cut, CODECS[codec]
    )
    bound = math.sqrt(2 * share / (1 - 2 * share))
    lumpy = share + (1 - share) * max(weights) / sum(weights) >= 0.4
    farthest = [max(column) for column in zip(*(tensor_errors(one, wanted) for one in honest), strict=True)]
    reached = [
        max(bound * spread, 1.25 * far * lumpy)
        for spread, far in zip(honest_spread(honest, wanted), farthest, strict=True)
    ]
    limits = [off + far for off, far in zip(alone, reached, strict=True)]
    errors = tensor_errors(found, wanted)
    close = zip(errors, limits, strict=True)
    assert all(error <= (1 + ROUNDING) * limit for error, limit in close), (errors, limits)


def test_with_three_sevenths_of_the_weight_they_turn_a_tensor_around():
    """The test above needs its third. Five of sixteen that claim all the work that counts hold 3/7 of the weight
    (`coordinator.chain.weights`), and these send the opposite of what the honest, who differ a lot, have in common.
    So many that send one vector can be the geometric median, where their rests are nothing and agree in nothing.
    """
    hostile, members = 5, 16
    honest, claimed = cloud(members - hostile, 22), [1e9] * hostile + weights_for(members - hostile, 22)
    weights = [min(one, limit_of(claimed, members)) for one in claimed]
    assert sum(weights[:hostile]) / sum(weights) == pytest.approx(3 / 7, abs=1e-3)
    cut = Partitioning.of(LAYOUT, 1)
    opposite = askew(torch.stack(honest), torch.ones(LAYOUT.elements), math.pi, 4.0)
    wanted = merge_all(honest, weights[hostile:], MERGES["rda"], cut)
    found = merge_all([opposite] * hostile + honest, weights, MERGES["robust_rda"], cut)
    fewer = [min(one, 0.5 * sum(weights[hostile:]) / hostile) for one in weights[:hostile]]  # of all a third
    better = merge_all([opposite] * hostile + honest, fewer + weights[hostile:], MERGES["robust_rda"], cut)
    (start, stop), *_ = pairwise(LAYOUT.offsets)
    assert float(torch.cosine_similarity(found[start:stop], wanted[start:stop], dim=0)) < -0.9
    assert float(torch.cosine_similarity(better[start:stop], wanted[start:stop], dim=0)) > 0.9


@pytest.mark.parametrize("codec", ["fp32", "int8", "int4", "e3m0"])
@pytest.mark.parametrize("rule", RULES)
def test_values_that_are_not_finite_never_reach_a_rule(codec: str, rule: MergeRule):
    """A hostile member that commits to bytes decoding to NaN is left out, and the merge is as without it."""
    cut, encoding = Partitioning.of(LAYOUT, 2), CODECS[codec]
    contributions = contribute(cloud(8, 3), cut, encoding)
    members = members_of(contributions, weights_for(8, 3))
    results, expected = [], []
    for partition in range(2):
        admitted = {}
        own = cut.segment_span(partition)
        for index, one in enumerate(contributions):
            data = one.parts[partition]
            if index in (2, 5):
                data = struct.pack("<f", math.nan) + data[4:]
            found = admit(data, one.squared_norms[own], cut, partition, encoding)
            if not isinstance(found, str):
                admitted[index] = found.vector
        assert sorted(admitted) == [0, 1, 3, 4, 6, 7]
        results.append(reduce_partition(admitted, members, rule, cut, partition, encoding))
        decoded = {i: contributions[i].decoded[cut.span(partition)] for i in admitted}
        expected.append(reduce_partition(decoded, members, rule, cut, partition, encoding))
    assert results == expected
    assert torch.isfinite(joined(merged_gradients(cut, results, members, rule, encoding), cut)).all()


def test_plain_rules_do_leave_it():
    """The test above would notice: a mean, and an `rda`'s length, follow the longest vector."""
    cut, vectors, weights = Partitioning.of(LAYOUT, 2), cloud(8, 1), [1.0] * 8
    sent = [vector * 1e3 if index < 2 else vector for index, vector in enumerate(vectors)]
    wanted = merge_all(vectors[2:], weights[2:], MERGES["rda"], cut)
    for name in ("mean", "rda"):
        errors = tensor_errors(merge_all(sent, weights, MERGES[name], cut, FP32), wanted)
        assert all(error > 10 * own for error, own in zip(errors, honest_spread(vectors[2:], wanted), strict=True))
