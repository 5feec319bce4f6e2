"""Recomputes leaves of results from opened inputs bit for bit: for spot checks (design §6.2 step 8), evidence (§9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coordinator.wire.messages import COEFFICIENTS_MAX
from dht.errors import LocalError, PeerError
from peer.numerics.leaves import Look
from peer.numerics.merge import MergeRule, combine
from peer.numerics.reduction import merge_plan, overlaps
from peer.numerics.robust.plugin_rule import RuleError
from peer.numerics.robust.segments import TensorInputs, is_by_coordinate, merge_segment

Segments = Sequence[tuple[slice, TensorInputs]]


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A result's merge: the rule, the inputs of every segment, and the published coefficients."""

    rule: MergeRule
    segments: Segments
    coefficients: tuple[float, ...]
    members: int

    @property
    def coefficients_due(self) -> int:
        """Number of coefficients of an honest result."""
        return 0 if self.is_by_coordinate or not self.is_verifiable else len(self.segments) * self.members

    @property
    def is_by_coordinate(self) -> bool:
        return is_by_coordinate(self.rule)

    @property
    def is_verifiable(self) -> bool:
        """Whether a leaf of an honest result can be recomputed; if not, only a second reduction could check it."""
        rows = any(inputs.row_elements for _, inputs in self.segments)
        many = len(self.segments) * self.members > COEFFICIENTS_MAX and not self.is_by_coordinate
        return not (rows or many or self.rule.name == "nnm_trimmed_mean")

    def leaves(self, look: Look, chosen: tuple[int, ...]) -> bytes | None:
        """Return leaves of the result, concatenated, computed from their inputs; None if these give no valid result.

        Requires that the number of coefficients is `coefficients_due`, and the result verifiable. Raises RuleError if
        this machine cannot tell.
        """
        if any(not any(inputs.weights) for _, inputs in self.segments):
            return None
        windows = look.leaves.windows(chosen)
        try:
            vectors = look.vectors(chosen)
            with np.errstate(all="ignore"):  # a liar may publish coefficients that overflow float32
                if self.is_by_coordinate:
                    merged = self._by_coordinate(vectors, windows)
                else:
                    plan = merge_plan(self.rule.name, self.segments, self.coefficients, self.members)
                    merged = combine(vectors, *plan.windows(windows))
            return look.leaves.result.encode(merged)  # blocks are independent, and only the last leaf may be partial
        except RuleError:
            raise
        except (PeerError, LocalError, ValueError):
            return None  # inputs that no honest reducer includes, or a sum that no reducer can encode

    def _by_coordinate(self, vectors: Sequence[Tensor], windows: Sequence[slice]) -> Tensor:
        merged = torch.empty_like(vectors[0])
        for span, inputs in self.segments:
            for own in overlaps(span, windows):
                merged[own] = merge_segment(self.rule, [vector[own] for vector in vectors], inputs).vector
        return merged
