"""The gradient of a batch, computed in pieces, on one device or by a group of processes that share the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, UsageError
from peer.data.marks import weight_of
from peer.learner.devices import Placement
from peer.learner.gradient.held import HeldModel
from peer.learner.group.collective import Ranks


class BatchGradient:
    """The gradient of a model on its device."""

    def __init__(self, held: HeldModel, config: RunConfig, placement: Placement, group: Ranks) -> None:
        self._held = held
        self._marked = config.data.is_marked
        self._group = group
        self.half = None if config.inner.precision == "bfloat16" else placement.half
        self.place(placement)

    def place(self, placement: Placement) -> None:
        """Apply this placement from now on; raises UsageError if the model cannot recompute its activations."""
        self.placement = placement
        if placement.recompute:
            try:
                cast(Callable[..., None], self._held.model.activation_checkpointing_enable)()
            except (AttributeError, ValueError):
                raise UsageError(
                    "this model needs more memory than there is, and cannot recompute activations"
                ) from None
        self._held.objective.compile(placement.compiled)

    def backward(self, batch: Tensor, factor: float) -> Tensor:
        """Set the gradients to those of `factor` times the mean loss over a batch; returns `factor` times that loss.

        Uses smaller pieces from now on if another program has taken memory; raises LocalError if none is left.
        """
        while True:
            try:
                return self._backward(batch, factor)
            except torch.OutOfMemoryError:
                at_once = self.placement.at_once(batch.shape[1] - 1) or len(batch)
                if at_once == 1:
                    raise LocalError("the GPU has no memory left for a step; end what else runs there") from None
            if self._group.sharded:  # the others wait for us in the middle of a layer
                raise LocalError("a GPU that shares a model has no memory left; end what else runs there") from None
            torch.cuda.empty_cache()
            self.place(replace(self.placement, sequences=(at_once + 1) // 2))

    def try_once(self, sequences: Tensor) -> None:
        """Run forward and backward once over these sequences, all at a time."""
        with self._autocast():
            self._held.objective.backward(sequences.to(self.placement.device), 1.0)

    def _backward(self, batch: Tensor, factor: float) -> Tensor:
        self._held.parameters.clear_gradient()
        total, share = torch.zeros((), device=self.placement.device), factor / self._weight(batch)
        with self._autocast():
            for piece, weight in self._pieces(batch):
                total += self._held.objective.backward(piece.to(self.placement.device), weight * share)
        self._held.parameters.finish_gradient(self._group.add)
        self._group.add(total)
        return total

    def _pieces(self, batch: Tensor) -> list[tuple[Tensor, int]]:
        """Return this process's pieces and the weight of each.

        All processes have the same number of pieces: one with fewer sequences adds pieces of weight zero.
        """
        most = math.ceil(len(batch) / self._group.size)
        at_once = min(self.placement.at_once(batch.shape[1] - 1) or most, most)
        own = self._group.own_share(batch)
        pieces = [(piece, self._weight(piece)) for piece in torch.split(own, at_once) if len(piece)]
        return pieces + [(batch[:1], 0)] * (math.ceil(most / at_once) - len(pieces))

    def _weight(self, sequences: Tensor) -> int:
        """Return the weight of these sequences' mean loss in the mean over a batch."""
        return weight_of(sequences, self._marked)

    def _autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context for all pieces of a batch, so that weights are cast once."""
        kind = torch.device(self.placement.device).type
        return torch.autocast(kind, dtype=self.half, enabled=self.half is not None)
