"""Attacks that need no knowledge of anybody else."""

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
    """Backwards: −λ times its own outer gradient."""

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
    """A free rider: nothing at all."""

    def lie(self, scene: Scene) -> Tensor:
        return torch.zeros_like(scene.own)


class RandomNoise(Attack):
    """Gaussian noise, `factor` times as long as honest outer gradients are on average."""

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 10.0

    def lie(self, scene: Scene) -> Tensor:
        return _noise(len(scene.own), scene.seed) * (self.strength * scene.honest_length())


class FixedDirection(Attack):
    """One random direction for ever, `factor` times as long as honest outer gradients."""

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 10.0

    def lie(self, scene: Scene) -> Tensor:
        direction = _noise(len(scene.own), DIRECTION_SEED + scene.fragment)
        return direction * (self.strength * scene.honest_length())


class NotANumber(Attack):
    """Commits, truthfully, to encoded bytes whose first number is all ones: NaN as a value or scale of every codec."""

    def forge(self, part: bytes) -> bytes:
        return b"\xff" * min(4, len(part)) + part[4:]


class TokenLie(Attack):
    """Sign flip, with a claim to `factor` times the tokens it has seen: weight is tokens²/steps.

    Claims at most what a commitment can say. That has no form for fewer than none: such bytes nobody would read.
    """

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 10.0
    least: ClassVar[float] = 0.0

    def lie(self, scene: Scene) -> Tensor:
        return -scene.own

    def claim(self, encoded: Encoded) -> Encoded:
        return replace(encoded, tokens=_claimed(encoded.tokens, self.strength))


class WorkLie(Zero):
    """A free rider that claims `factor` times the work: tokens, steps and windows alike, so that nobody refuses it."""

    parameter: ClassVar[str] = "factor"
    default: ClassVar[float] = 1000.0
    least: ClassVar[float] = 0.0

    def claim(self, encoded: Encoded) -> Encoded:
        return with_work(encoded, self.strength)


def with_work(encoded: Encoded, factor: float) -> Encoded:
    """A claim to `factor` times the work, which agrees with itself."""
    steps = min(math.ceil(encoded.steps * factor), COUNT_MAX)
    return replace(encoded, tokens=_claimed(encoded.tokens, factor), steps=steps, window_count=steps)


def _claimed(tokens: int, factor: float) -> int:
    return int(min(tokens * factor, COUNT_MAX))


def _noise(elements: int, seed: int) -> Tensor:
    """A Gaussian vector of length 1."""
    drawn = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    return drawn.div_(drawn.norm())
