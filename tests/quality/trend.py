"""How far training with merges ends behind data-parallel training: a fit by size, published gaps, and steps lost.

A gap is the quotient of both losses less one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from statistics import linear_regression

# of Muon to data-parallel Muon by million parameters: 16 learners, H = 30 (MuLoCo, arXiv 2505.23725)
MULOCO_GAPS: Mapping[float, float] = {150: 0.031, 416: 0.027, 914: 0.019, 3100: 0.017}


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """gap = factor · size ^ -exponent."""

    factor: float
    exponent: float

    @classmethod
    def fitted(cls, gaps: Mapping[float, float]) -> PowerLaw:
        """Return the least squares fit in logarithms; takes at least two sizes, and positive gaps."""
        slope, intercept = linear_regression([log(size) for size in gaps], [log(gap) for gap in gaps.values()])
        return cls(exp(intercept), -slope)

    def at(self, size: float) -> float:
        return self.factor * float(size**-self.exponent)


def steps_to(loss: float, losses: Mapping[int, float]) -> float | None:
    """Return the steps after which runs end at `loss`; `losses` has the last loss of each run, by its steps.

    Logarithms are interpolated between two neighbours. None if no two neighbours enclose the loss.
    """
    for (fewer, higher), (more, lower) in pairwise(sorted(losses.items())):
        if lower <= loss <= higher and lower < higher:
            share = log(higher / loss) / log(higher / lower)
            return float(fewer * (more / fewer) ** share)
    return None
