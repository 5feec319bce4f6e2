"""Attacks that need no knowledge of other peers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from coordinator.chain.certificate import COUNT_MAX
from coordinator.core.events import Encoded
from peer.attacks.attack import Attack, Scene

DIRECTION_SEED = 0x5EED


class SignFlip(Attack):
    """The opposite direction: −λ times its own outer gradient."""

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 10.0

    def lie(self, scene: Scene) -> Tensor:
        return scene.own * -self.strength


class Scaling(Attack):
    """λ times its own outer gradient."""

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 100.0

    def lie(self, scene: Scene) -> Tensor:
        return scene.own * self.strength


class Zero(Attack):
    """A free rider: all zeros."""

    def lie(self, scene: Scene) -> Tensor:
        return torch.zeros_like(scene.own)


class RandomNoise(Attack):
    """Gaussian noise, `factor` times as long as the average honest outer gradient."""

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 10.0

    def lie(self, scene: Scene) -> Tensor:
        return _noise(len(scene.own), scene.seed) * (self.strength * scene.honest_length())


class FixedDirection(Attack):
    """One constant random direction, `factor` times as long as the average honest outer gradient."""

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 10.0

    def lie(self, scene: Scene) -> Tensor:
        direction = _noise(len(scene.own), DIRECTION_SEED + scene.fragment)
        return direction * (self.strength * scene.honest_length())


class NotANumber(Attack):
    """A true commitment to encoded bytes whose first number is all ones: NaN as a value or scale of every codec."""

    def forge(self, part: bytes) -> bytes:
        return b"\xff" * min(4, len(part)) + part[4:]


class TokenLie(Attack):
    """A sign flip, with a claim to `factor` times the tokens seen: weight is tokens²/steps.

    It claims at most what a commitment can hold. Commitments have no negative numbers: no peer would read such bytes.
    """

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 10.0
    least: ClassVar[float] = 0.0

    def lie(self, scene: Scene) -> Tensor:
        return -scene.own

    def claim(self, encoded: Encoded) -> Encoded:
        return replace(encoded, tokens=_claimed(encoded.tokens, self.strength))


class WorkLie(Zero):
    """A free rider that claims `factor` times the work; tokens, steps and windows agree, so it is accepted."""

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 1000.0
    least: ClassVar[float] = 0.0

    def claim(self, encoded: Encoded) -> Encoded:
        return with_work(encoded, self.strength)


def with_work(encoded: Encoded, factor: float) -> Encoded:
    """Return a consistent claim to `factor` times the work."""
    steps = min(math.ceil(encoded.steps * factor), COUNT_MAX)
    return replace(encoded, tokens=_claimed(encoded.tokens, factor), steps=steps, window_count=steps)


def _claimed(tokens: int, factor: float) -> int:
    return int(min(tokens * factor, COUNT_MAX))


def _noise(elements: int, seed: int) -> Tensor:
    """Return a Gaussian vector of length 1."""
    drawn = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    return drawn.div_(drawn.norm())
