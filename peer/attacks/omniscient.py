"""Attacks that see the honest outer gradients of the same moment, and hide among them.

Their formulas are those of the literature, with μ the honest mean and σ the deviation by element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from peer.attacks.attack import Attack, Scene
from peer.numerics.robust.segments import TensorInputs, merge_segment, tensor_radius

TRIALS = 20  # strengths that an optimised attack tries, as in byzfl
TRIAL_RANGE = (0.1, 10.0)
LIMIT_MIN, LIMIT_MAX = 0.001, 1e6
BISECTIONS = 30


class Alie(Attack):
    """A little is enough (Baruch 2019): μ − zσ, within the honest spread; z = 0 uses the paper's z_max."""

    parameter: ClassVar[str] = "z"
    default: ClassVar[float] = 1.5

    def lie(self, scene: Scene) -> Tensor:
        mean, spread = scene.moments()
        return mean - (self.strength or _textbook_z(scene)) * spread


class Ipm(Attack):
    """Inner product manipulation (Xie 2020): −εμ."""

    parameter: ClassVar[str] = "epsilon"
    default: ClassVar[float] = 2.0

    def lie(self, scene: Scene) -> Tensor:
        return scene.moments()[0] * -self.strength


class OptimisedAlie(Attack):
    """ALIE with the z, up to `limit`, that moves this run's merge furthest from the honest mean."""

    parameter: ClassVar[str] = "limit"
    default: ClassVar[float] = TRIAL_RANGE[1]
    least: ClassVar[float] = LIMIT_MIN
    most: ClassVar[float] = LIMIT_MAX

    def lie(self, scene: Scene) -> Tensor:
        mean, spread = scene.moments()
        return _worst(scene, self.strength, lambda z: mean - z * spread)


class OptimisedIpm(Attack):
    """IPM with the ε, up to `limit`, that moves this run's merge furthest from the honest mean."""

    parameter: ClassVar[str] = "limit"
    default: ClassVar[float] = TRIAL_RANGE[1]
    least: ClassVar[float] = LIMIT_MIN
    most: ClassVar[float] = LIMIT_MAX

    def lie(self, scene: Scene) -> Tensor:
        mean, _ = scene.moments()
        return _worst(scene, self.strength, lambda epsilon: mean * -epsilon)


class MinMax(Attack):
    """μ − γσ, with the largest γ at no greater distance from any honest one than they are apart (Shejwalkar 2021)."""

    def lie(self, scene: Scene) -> Tensor:
        honest = scene.stacked()
        limit = float(torch.cdist(honest, honest).max())
        return _furthest(scene, lambda lie: float((honest - lie).norm(dim=1).max()) <= limit)


class MinSum(Attack):
    """μ − γσ, with the largest γ whose summed squared distances do not exceed an honest one's (Shejwalkar 2021)."""

    def lie(self, scene: Scene) -> Tensor:
        honest = scene.stacked()
        limit = float(torch.cdist(honest, honest).square().sum(1).max())
        return _furthest(scene, lambda lie: float((honest - lie).square().sum()) <= limit)


class Mimic(Attack):
    """A copy of one honest learner, the most extreme along their principal direction (Karimireddy 2022)."""

    def __init__(self, strength: float) -> None:
        super().__init__(strength)
        self._victim: str | None = None

    def lie(self, scene: Scene) -> Tensor:
        honest = scene.honest()
        if self._victim is None:
            self._victim = _most_extreme(honest)
        return honest.get(self._victim, scene.own)


def _textbook_z(scene: Scene) -> float:
    members = len(scene.honest()) + scene.attackers
    supporters = members // 2 + 1 - scene.attackers
    share = (members - scene.attackers - supporters) / (members - scene.attackers)
    return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0


def _worst(scene: Scene, limit: float, lie_at: Callable[[float], Tensor]) -> Tensor:
    """Return the lie, at one of several strengths, that moves the merge furthest from the honest mean."""
    mean, _ = scene.moments()
    lowest = min(TRIAL_RANGE[0], limit)
    strengths = [lowest * (limit / lowest) ** (trial / (TRIALS - 1)) for trial in range(TRIALS)]
    return max(map(lie_at, strengths), key=lambda lie: float((_merged(scene, lie) - mean).norm()))


def _merged(scene: Scene, lie: Tensor) -> Tensor:
    """Return the fragment's merge as if it were one tensor and all weights equal."""
    vectors = [*scene.honest().values(), *[lie] * scene.attackers]
    norms = tuple(float(vector.norm()) for vector in vectors)
    inputs = TensorInputs(norms, (1.0,) * len(vectors), embedding=False)
    merged = merge_segment(scene.merge, vectors, inputs).vector
    if not scene.merge.directional:
        return merged
    return merged * (tensor_radius(scene.merge.name, inputs) / max(float(merged.norm()), 1e-30))


def _furthest(scene: Scene, hides: Callable[[Tensor], bool]) -> Tensor:
    """Return μ − γσ with the largest γ for which `hides` is true, by bisection."""
    mean, spread = scene.moments()
    low, high = 0.0, 1.0
    while high < 1e3 and hides(mean - high * spread):
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if hides(mean - middle * spread) else (low, middle)
    return mean - low * spread


def _most_extreme(honest: Mapping[str, Tensor]) -> str:
    """Return the learner furthest along the principal direction.

    The first eigenvector of the learners' inner products holds their positions along it.
    """
    centred = torch.stack(list(honest.values()))
    centred = centred - centred.mean(0)
    products = centred @ centred.T
    along = torch.linalg.eigh(products.double()).eigenvectors[:, -1]
    return list(honest)[int(along.abs().argmax())]
