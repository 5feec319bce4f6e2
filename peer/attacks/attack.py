"""What a hostile learner may do, and what it knows: the base class of every value attack."""

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
    """What an attacker knows when it contributes to a round; vectors are float32[elements] of the fragment."""

    own: Tensor  # the outer gradient that it would send if it were honest
    honest: Callable[[], Mapping[str, Tensor]]  # what the honest learners have at this moment, by peer
    attackers: int
    seed: int  # of this round and attacker
    fragment: int
    state: OuterState  # the anchor and momentum that the round starts from
    rates: tuple[float, float]  # η and μ of the outer step
    merge: MergeRule  # that will merge the lies

    def stacked(self) -> Tensor:
        """The honest outer gradients, float32[learners, elements]."""
        return torch.stack(list(self.honest().values()))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the honest ones, element by element."""
        stacked = self.stacked()
        spread = stacked.std(0) if len(stacked) > 1 else torch.zeros_like(stacked[0])
        return stacked.mean(0), spread

    def honest_length(self) -> float:
        """Mean norm of the honest outer gradients."""
        return float(self.stacked().norm(dim=1).mean())


class Attack:
    """One hostile learner in one life. A new attack is a subclass that overrides what it lies about.

    `strength` is what the attack calls its `parameter`, if it has one. See `examples/attacks/` for one of your own.
    """

    parameter: ClassVar[str] = ""  # none: it is as strong as it is
    default: ClassVar[float] = 1.0
    least: ClassVar[float] = -math.inf  # of the strength; any number beyond makes no sense
    most: ClassVar[float] = math.inf
    whole: ClassVar[bool] = False  # a number of rounds, say

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def prepare(self, learner: Learner) -> None:
        """Change how the learner trains, before its first step."""

    def read(self, batches: Batches) -> Batches:
        """What it trains on instead of the data that it was given."""
        return batches

    def lie(self, scene: Scene) -> Tensor:
        """The outer gradient to send instead of `scene.own`, float32[elements]."""
        return scene.own

    def claim(self, encoded: Encoded) -> Encoded:
        """What to commit to instead of what was done: tokens, steps."""
        return encoded

    def forge(self, part: bytes) -> bytes:
        """The encoded bytes to commit to and send instead of these."""
        return part

    def commit(self, encoded: Encoded, blobs: BlobStore, leaf_bytes: int) -> Encoded:
        """What is committed to instead of `encoded`, whose parts lie in `blobs`, as the forged ones will."""
        forged = tuple(self._forged_root(root, blobs, leaf_bytes) for root in encoded.part_roots)
        return self.claim(replace(encoded, part_roots=forged))

    def _forged_root(self, root: bytes, blobs: BlobStore, leaf_bytes: int) -> bytes:
        part = blobs.get(root)
        forged = None if part is None else self.forge(bytes(part))
        return root if forged is None or forged == part else blobs.add(forged, leaf_bytes) or root
