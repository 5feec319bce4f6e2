"""A whole merge by all reducers and one member, without messages, shared by the tests of the wired path."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.numerics import outer_step
from peer.numerics.codec import CODECS, Codec
from peer.numerics.fragments import FragmentLayout, Partitioning, TensorSpec
from peer.numerics.merge import MergeRule
from peer.numerics.outer_step import AgreedResult, joined
from peer.numerics.reduction import (
    Contribution,
    Member,
    ReducedPartition,
    admit,
    encode_contribution,
    merge_partition,
    publish,
)

FP32 = CODECS["fp32"]
LAYOUT = FragmentLayout(
    0, (TensorSpec("embedding", (20, 8), embedding=True), TensorSpec("gain", (16,)), TensorSpec("matrix", (60, 16)))
)


@dataclass(frozen=True)
class Committed:
    """A member as the input set describes it."""

    weight: float
    squared_norms: tuple[float, ...]


def draws(layout: FragmentLayout, count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(layout.elements, generator=generator) * (index + 1) for index in range(count)]


@dataclass(frozen=True)
class Made:
    """A contribution, with `decoded`, float32[elements], as the others decode it."""

    parts: tuple[bytes, ...]
    part_roots: tuple[bytes, ...]
    squared_norms: tuple[float, ...]
    decoded: Tensor

    @classmethod
    def of(cls, vector: Tensor, cut: Partitioning, codec: Codec = FP32) -> Made:
        made = encode_contribution(vector.__getitem__, cut, codec)
        seen = [codec.decode(part, cut.elements(partition)) for partition, part in enumerate(made.parts)]
        return cls(made.parts, made.part_roots, made.squared_norms, torch.cat(seen))


def contribute(vectors: Sequence[Tensor], cut: Partitioning, codec: Codec = FP32) -> list[Made]:
    return [Made.of(vector, cut, codec) for vector in vectors]


def members_of(contributions: Sequence[Contribution | Made], weights: Sequence[float]) -> dict[int, Committed]:
    return {
        index: Committed(weight, contribution.squared_norms)
        for index, (weight, contribution) in enumerate(zip(weights, contributions, strict=True))
    }


def reduce_all(
    contributions: Sequence[Made],
    members: dict[int, Committed],
    rule: MergeRule,
    cut: Partitioning,
    codec: Codec = FP32,
    leave_out: Collection[tuple[int, int]] = (),
) -> list[ReducedPartition]:
    """Return every reducer's result; `leave_out` holds (partition, member) pairs that did not arrive."""
    return [
        reduce_partition(
            {
                index: contribution.decoded[cut.span(partition)]
                for index, contribution in enumerate(contributions)
                if (partition, index) not in leave_out
            },
            members,
            rule,
            cut,
            partition,
            codec,
        )
        for partition in range(cut.partitions)
    ]


def merged_gradients(
    cut: Partitioning,
    results: Sequence[ReducedPartition | None],
    members: Mapping[int, Member],
    rule: MergeRule,
    codec: Codec = FP32,
) -> list[Tensor | None]:
    """Return the merged gradients that every member computes from the results, by partition; None is void."""
    held: list[AgreedResult | None] = []
    for partition, result in enumerate(results):
        admitted = None if result is None else admit(result.data, result.squared_norms, cut, partition, codec)
        assert not isinstance(admitted, str), admitted
        held.append(None if result is None or admitted is None else AgreedResult(admitted, result.included))
    return outer_step.merged_gradients(cut, held, lambda merged: [members[one] for one in sorted(merged)], rule)[0]


def merge_all(
    vectors: Sequence[Tensor], weights: Sequence[float], rule: MergeRule, cut: Partitioning, codec: Codec = FP32
) -> Tensor:
    contributions = contribute(vectors, cut, codec)
    members = members_of(contributions, weights)
    results = reduce_all(contributions, members, rule, cut, codec)
    return joined(merged_gradients(cut, results, members, rule, codec), cut)


def relative(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm()) / max(float(other.double().norm()), 1e-30)


def reduce_partition(
    vectors: Mapping[int, Tensor],
    members: Mapping[int, Member],
    rule: MergeRule,
    partitioning: Partitioning,
    partition: int,
    codec: Codec,
) -> ReducedPartition:
    """Do a reducer's whole work on one core."""
    return publish(merge_partition(vectors, members, rule, partitioning, partition), partitioning, partition, codec)
