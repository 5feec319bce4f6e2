"""The base class of every attack on values, and the knowledge that an attacker has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coordinator.core.events import Encoded
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.learner import Learner
from peer.numerics.merge import MergeRule
from peer.numerics.outer_optimizer import OuterState
from peer.storage.blobs import BlobStore


@dataclass(frozen=True, slots=True)
class Scene:
    """An attacker's knowledge when it contributes to a round; vectors are float32[elements] of the fragment."""

    own: Tensor  # the outer gradient that an honest learner would send
    honest: Callable[[], Mapping[str, Tensor]]  # outer gradients of the honest learners at this moment, by peer
    attackers: int
    seed: int  # of this round and attacker
    fragment: int
    state: OuterState  # anchor and momentum at the start of the round
    rates: tuple[float, float]  # η and μ of the outer step
    merge: MergeRule  # the rule that will merge the lies

    def stacked(self) -> Tensor:
        """Return the honest outer gradients, float32[learners, elements]."""
        return torch.stack(list(self.honest().values()))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the honest outer gradients, element by element."""
        stacked = self.stacked()
        spread = stacked.std(0) if len(stacked) > 1 else torch.zeros_like(stacked[0])
        return stacked.mean(0), spread

    def honest_length(self) -> float:
        """Return the mean norm of the honest outer gradients."""
        return float(self.stacked().norm(dim=1).mean())


class Attack:
    """One hostile learner in one life. A new attack is a subclass that overrides the methods it needs.

    `strength` is the value of the attack's `parameter`, if it has one. `examples/attacks/` shows how to write your own.
    """

    parameter: ClassVar[str] = ""  # empty: the strength is fixed
    default: ClassVar[float] = 1.0
    least: ClassVar[float] = -math.inf  # lower bound of the strength; beyond it the attack makes no sense
    most: ClassVar[float] = math.inf
    whole: ClassVar[bool] = False  # whether the strength is a whole number, such as of rounds

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def prepare(self, learner: Learner) -> None:
        """Change how the learner trains, before its first step."""

    def read(self, batches: Batches) -> Batches:
        """Return the training data to use instead of the assigned data."""
        return batches

    def lie(self, scene: Scene) -> Tensor:
        """Return the outer gradient to send instead of `scene.own`, float32[elements]."""
        return scene.own

    def claim(self, encoded: Encoded) -> Encoded:
        """Return the claim to commit to instead of the true one, such as other tokens or steps."""
        return encoded

    def forge(self, part: bytes) -> bytes:
        """Return the encoded bytes to commit to and send instead of `part`."""
        return part

    def commit(self, encoded: Encoded, blobs: BlobStore, leaf_bytes: int) -> Encoded:
        """Return the commitment to make instead of `encoded`; `blobs` holds its parts and gets the forged ones."""
        forged = tuple(self._forged_root(root, blobs, leaf_bytes) for root in encoded.part_roots)
        return self.claim(replace(encoded, part_roots=forged))

    def _forged_root(self, root: bytes, blobs: BlobStore, leaf_bytes: int) -> bytes:
        part = blobs.get(root)
        forged = None if part is None else self.forge(bytes(part))
        return root if forged is None or forged == part else blobs.add(forged, leaf_bytes) or root
