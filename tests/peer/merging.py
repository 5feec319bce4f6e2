"""A merge as all reducers and one member do it together, without messages: shared by the tests of the wired path."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.codec import CODECS, Codec
from peer.fragments import FragmentLayout, Partitioning, TensorSpec
from peer.merge import MergeRule
from peer.reduction import Contribution, ReducedPartition, encode_contribution, merged_gradient, reduce_partition

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


def contribute(vectors: Sequence[Tensor], cut: Partitioning, codec: Codec = FP32) -> list[Contribution]:
    return [encode_contribution(vector, cut, codec) for vector in vectors]


def members_of(contributions: Sequence[Contribution], weights: Sequence[float]) -> dict[int, Committed]:
    return {
        index: Committed(weight, contribution.squared_norms)
        for index, (weight, contribution) in enumerate(zip(weights, contributions, strict=True))
    }


def reduce_all(
    contributions: Sequence[Contribution],
    members: dict[int, Committed],
    rule: MergeRule,
    cut: Partitioning,
    codec: Codec = FP32,
    leave_out: Collection[tuple[int, int]] = (),
) -> list[ReducedPartition]:
    """What every reducer publishes; `leave_out` has (partition, member) pairs that did not arrive."""
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


def merge_all(
    vectors: Sequence[Tensor], weights: Sequence[float], rule: MergeRule, cut: Partitioning, codec: Codec = FP32
) -> Tensor:
    contributions = contribute(vectors, cut, codec)
    members = members_of(contributions, weights)
    return merged_gradient(cut, reduce_all(contributions, members, rule, cut, codec), members, rule, codec)[0]


def relative(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm()) / max(float(other.double().norm()), 1e-30)
