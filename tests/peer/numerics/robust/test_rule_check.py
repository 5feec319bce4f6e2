"""Checking coefficients against the rule when a voter sees only a part of a segment (docs/adr/0034)."""

from __future__ import annotations

import numpy as np
import torch

from peer.numerics.coefficient_check import Sample, excess, follows_rule
from peer.numerics.merge import MERGES
from peer.numerics.robust.segments import TensorInputs, merge_segment

SEEN, WHOLE, MEMBERS, ASKEW = 1024, 3072, 8, (1, 5)
RULE = MERGES["robust_rda"]


def vectors() -> torch.Tensor:
    """Return similar vectors and two that differ.

    In the part that is seen, the two point slightly against the others; in the rest, each its own way, and longer.
    """
    draw = torch.Generator().manual_seed(0)
    common = torch.randn(WHOLE, generator=draw)
    stack = common + torch.randn(MEMBERS, WHOLE, generator=draw)
    for member in ASKEW:
        stack[member, :SEEN] = -0.3 * common[:SEEN] + 0.3 * torch.randn(SEEN, generator=draw)
        stack[member, SEEN:] = 2 * torch.randn(WHOLE - SEEN, generator=draw)
    return stack


def sample_of(stack: torch.Tensor, inputs: TensorInputs, coefficients: list[float]) -> Sample:
    squares = tuple(norm**2 for norm in inputs.norms)
    return Sample([vector[:SEEN].numpy() for vector in stack], inputs, coefficients, WHOLE, squares)


def test_a_member_short_in_the_seen_part_may_point_elsewhere_as_a_whole() -> None:
    stack = vectors()
    inputs = TensorInputs(tuple(stack.norm(dim=1).tolist()), (1.0,) * MEMBERS, embedding=False)
    honest = list(merge_segment(RULE, list(stack), inputs).coefficients)
    assert min(honest[member] for member in ASKEW) > 0.45 / MEMBERS
    assert follows_rule("robust_rda", [sample_of(stack, inputs, honest)])
    left_out = [0.0, *(np.array(honest[1:]) / sum(honest[1:])).tolist()]
    assert not follows_rule("robust_rda", [sample_of(stack, inputs, left_out)])


def test_a_look_at_everything_finds_what_was_published_although_it_settles_sooner() -> None:
    stack = vectors()
    inputs = TensorInputs(tuple(stack.norm(dim=1).tolist()), (1.0,) * MEMBERS, embedding=False)
    honest = merge_segment(RULE, list(stack), inputs).coefficients
    whole = Sample([vector.numpy() for vector in stack], inputs, honest, WHOLE, tuple(norm**2 for norm in inputs.norms))
    assert np.abs(excess("robust_rda", whole, (0.0,))).max() < 1e-3
