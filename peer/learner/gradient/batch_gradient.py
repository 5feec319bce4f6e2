"""The gradient of a batch, some sequences after others, on one device or several of one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, UsageError
from peer.data.marks import weight_of
from peer.learner.devices import Placement
from peer.learner.gradient.attention import attend_without_masks
from peer.learner.gradient.objective import Objective
from peer.model.flat_parameters import FlatParameters
from peer.model.replicas import ModelCopy, shares


class BatchGradient:
    """The gradient of a model on its device, with `parameters`; makes the copies on other devices itself."""

    def __init__(self, model: nn.Module, parameters: FlatParameters, config: RunConfig, placement: Placement) -> None:
        precision = config.inner.precision
        self._copies = [ModelCopy.of(model, parameters.fragments, precision, one) for one in placement.others]
        self._parameters = parameters
        self._models = [model, *(one.model for one in self._copies)]
        self._marked = config.data.is_marked
        for one in self._models:
            if not self._marked:
                attend_without_masks(one, config.data.context_tokens)
        self._objectives = [Objective(one, self._marked) for one in self._models]
        self.half = None if precision == "bfloat16" else placement.half
        self.place(placement)

    def place(self, placement: Placement) -> None:
        """In these pieces from now on; raises UsageError if the model cannot recompute its activations."""
        self.placement = placement
        if placement.recompute:
            try:
                for model in self._models:
                    cast(Callable[..., None], model.activation_checkpointing_enable)()
            except (AttributeError, ValueError):
                raise UsageError(
                    "this model needs more memory than there is, and cannot recompute activations"
                ) from None
        for objective in self._objectives:
            objective.compile(placement.compiled)

    def backward(self, batch: Tensor, factor: float) -> Tensor:
        """Make the gradients those of `factor` times the mean loss over a batch; returns `factor` times that loss.

        In smaller pieces from now on if somebody else has taken memory; raises LocalError if there is none.
        """
        while True:
            try:
                return self._backward(batch, factor)
            except torch.OutOfMemoryError:
                at_once = self.placement.at_once(batch.shape[1] - 1) or len(batch)
                if at_once == 1:
                    raise LocalError("the GPU has no memory left for a step; end what else runs there") from None
            torch.cuda.empty_cache()
            self.place(replace(self.placement, sequences=(at_once + 1) // 2))

    def try_once(self, sequences: Tensor) -> None:
        """Forward and backward over some sequences at once on the first device."""
        with self._autocast():
            self._add((sequences,), 1 / self._weight(sequences))

    def rest(self) -> None:
        """Give up what copies hold."""
        for one in self._copies:
            one.parameters.rest()

    def _backward(self, batch: Tensor, factor: float) -> Tensor:
        self._parameters.gradient.zero_()
        for one in self._copies:
            one.follow(self._parameters.values)
        total, share = torch.zeros((), device=self.placement.device), factor / self._weight(batch)
        with self._autocast():
            for pieces in shares(batch, self.placement.at_once(batch.shape[1] - 1), len(self._models)):
                total += self._add(pieces, share)
        for one in self._copies:
            one.add_gradient(self._parameters.gradient)
        return total

    def _add(self, pieces: Sequence[Tensor], factor: float) -> Tensor:
        """Add to the gradients, a piece on each device; returns `factor` times the losses of their sequences."""
        values = [
            objective.backward(piece.to(device), self._weight(piece) * factor)
            for objective, device, piece in zip(self._objectives, self.placement.devices, pieces, strict=False)
        ]
        return torch.stack([value.to(self.placement.device) for value in values]).sum()

    def _weight(self, sequences: Tensor) -> int:
        """What the mean loss over these sequences counts in that over more of them."""
        return weight_of(sequences, self._marked)

    def _autocast(self) -> AbstractContextManager[object]:
        """Around all pieces of a batch, so that weights are cast once."""
        kind = torch.device(self.placement.device).type
        return torch.autocast(kind, dtype=self.half, enabled=self.half is not None)
