"""One batch on several devices of one machine (data-parallel within a learner, design §3).

Only the first device holds what lasts: parameters, the optimizer's state, everything that is exchanged. Each other one
has a copy of the model, which follows the parameters before each gradient and adds its share to it afterwards. So no
peer, no checkpoint and no adoption knows of them. One process serves them all: kernels run while the next device's are
queued, and autograd has a thread for each device (docs/adr/0021).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peer.model.flat_parameters import FlatParameters
from peer.numerics.fragments import FragmentLayout


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """The model on another device; `parameters` holds its values and its share of the gradient."""

    model: nn.Module
    parameters: FlatParameters

    @classmethod
    def of(cls, model: nn.Module, fragments: Sequence[FragmentLayout], precision: str, device: str) -> ModelCopy:
        """A copy of its own on `device`."""
        twin = copy.deepcopy(model)
        parameters = FlatParameters(twin, fragments, precision, device, follows=True)
        return cls(twin.to(device).train(), parameters)

    def follow(self, values: Tensor) -> None:
        """Take over the parameters of the first device; the gradient is zero afterwards."""
        if not self.parameters.is_awake:
            self.parameters.wake()
        self.parameters.values.copy_(values, non_blocking=True)
        self.parameters.gradient.zero_()

    def add_gradient(self, gradient: Tensor) -> None:
        """Add this share to the first device's."""
        gradient.add_(self.parameters.gradient.to(gradient.device))


def shares(batch: Tensor, at_once: int | None, devices: int) -> list[tuple[Tensor, ...]]:
    """The batch, one tuple of pieces after the other, each with at most one piece for each device.

    A piece has at most `at_once` sequences, None for any number, and no more than its device's share of the batch.
    """
    share = math.ceil(len(batch) / devices)
    size = min(at_once or share, share)
    pieces = torch.split(batch, size)
    return [pieces[first : first + devices] for first in range(0, len(pieces), devices)]
