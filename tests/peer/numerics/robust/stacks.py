"""Seeded stacks of vectors for the tests of merge rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from peer.numerics.robust.rules import AGGREGATORS, robust_embedding
from peer.numerics.robust.stack import Aggregator

RULES: dict[str, Aggregator] = {**AGGREGATORS, "robust_embedding": robust_embedding}
COMBINATIONS = tuple(name for name in RULES if name not in ("median", "trimmed_mean", "nnm_trimmed_mean"))
ABOUT_ORIGIN = ("rda", "robust_rda", "robust_embedding")  # lengths and directions change with a translation


@dataclass(frozen=True)
class Sample:
    """A stack `values`, float32[n, d], whose rows point roughly one way, as outer gradients do; some are far off."""

    values: np.ndarray
    weights: list[float]

    @property
    def vectors(self) -> list[Tensor]:
        return tensors(self.values)

    @property
    def size(self) -> float:
        """The median length, against which errors are measured."""
        return float(np.median(np.linalg.norm(self.values, axis=1)))


def tensors(values: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(row) for row in np.ascontiguousarray(values, np.float32)]


def sample(seed: int, members: int, elements: int, far: int = 0, equal_weights: bool = False) -> Sample:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(elements) + generator.standard_normal((members, elements))
    values[:far] *= -20
    weights = [1.0] * members if equal_weights else generator.uniform(0.2, 1.5, members).tolist()
    return Sample(values.astype(np.float32), weights)


@st.composite
def samples(draw: st.DrawFn, members_min: int = 1, members_max: int = 32) -> Sample:
    members = draw(st.integers(members_min, members_max))
    return sample(
        draw(st.integers(0, 2**32)),
        members,
        draw(st.integers(4, 40)),
        draw(st.integers(0, (members - 1) // 3)),
        draw(st.booleans()),
    )
