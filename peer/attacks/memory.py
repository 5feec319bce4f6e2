"""Attacks that remember earlier rounds."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from torch import Tensor

from peer.attacks.attack import Attack, Scene
from peer.numerics.outer_optimizer import OuterState

STALE_ROUNDS_MAX = 64
SLEEP_ROUNDS = 24  # with 8 fragments: three versions of each
SLEEPER_FACTOR = 10.0


class DeltaReplay(Attack):
    """A free rider that repeats the last accepted aggregate of the fragment, times `factor` (2604.04611)."""

    parameter: ClassVar[str] = "factor"

    def __init__(self, strength: float) -> None:
        super().__init__(strength)
        self._before: dict[int, OuterState] = {}
        self._accepted: dict[int, Tensor] = {}

    def lie(self, scene: Scene) -> Tensor:
        """Return the last aggregate times `factor`; two states determine the aggregate between them."""
        before, now = self._before.get(scene.fragment), scene.state
        if before is not None and before is not now:
            self._accepted[scene.fragment] = _between(before, now, *scene.rates)
        self._before[scene.fragment] = now
        return self._accepted.get(scene.fragment, scene.own) * self.strength


def _between(before: OuterState, now: OuterState, learning_rate: float, momentum: float) -> Tensor:
    """Return the aggregate between two states.

    The outer step adds it to the decayed momentum; without momentum it is the anchor's change over the learning rate.
    """
    return now.velocity - before.velocity * momentum if momentum else (before.anchor - now.anchor) / learning_rate


class Stale(Attack):
    """Its own outer gradient of the same fragment, `rounds` ago."""

    parameter: ClassVar[str] = "rounds"
    default: ClassVar[float] = 5.0
    least: ClassVar[float] = 1.0
    most: ClassVar[float] = STALE_ROUNDS_MAX
    whole: ClassVar[bool] = True

    def __init__(self, strength: float) -> None:
        super().__init__(strength)
        self._kept: dict[int, deque[Tensor]] = {}

    def lie(self, scene: Scene) -> Tensor:
        kept = self._kept.setdefault(scene.fragment, deque(maxlen=int(self.strength) + 1))
        kept.append(scene.own)
        return kept[0]


class Sleeper(Attack):
    """Honest contributions for a while, then a tenfold sign flip in every `every`-th round."""

    parameter: ClassVar[str] = "every"
    default: ClassVar[float] = 10.0
    least: ClassVar[float] = 1.0
    whole: ClassVar[bool] = True

    def __init__(self, strength: float) -> None:
        super().__init__(strength)
        self._rounds = 0

    def lie(self, scene: Scene) -> Tensor:
        self._rounds += 1
        awake = self._rounds > SLEEP_ROUNDS and self._rounds % int(self.strength) == 0
        return scene.own * -SLEEPER_FACTOR if awake else scene.own
