"""The model that a process of a learner holds: a whole one, or its part of a model that no process holds whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from coordinator.run.manifest import RunConfig
from peer.learner.devices import Placement
from peer.learner.gradient.attention import attend_without_masks
from peer.learner.gradient.objective import Objective
from peer.learner.gradient.sharded import ShardedObjective, ShardedParameters, ShardedRows
from peer.learner.group.collective import Ranks
from peer.learner.optimizers.muon import WHOLE, Rows
from peer.model.flat_parameters import FlatParameters
from peer.numerics.fragments import FragmentLayout


@dataclass(frozen=True, slots=True)
class HeldModel:
    """The model of one process, its parameters, its loss, and its rows of each matrix."""

    model: nn.Module
    parameters: FlatParameters | ShardedParameters
    objective: Objective | ShardedObjective
    rows: Rows


def held_by(
    group: Ranks, model: nn.Module, fragments: Sequence[FragmentLayout], config: RunConfig, placement: Placement
) -> HeldModel:
    """Move a model from the CPU to the group's devices; raises UsageError if it cannot be shared out."""
    context, precision, marked = config.data.context_tokens, config.inner.precision, config.data.is_marked
    if not group.sharded:
        parameters = FlatParameters(model, fragments, precision, placement.device)
        model.to(placement.device).train()  # the parameters are on the device already; this moves the buffers
        if not marked:
            attend_without_masks(model, context)
        return HeldModel(model, parameters, Objective(model, marked), WHOLE)
    model.train()
    if not marked:
        attend_without_masks(model, context)
    objective = ShardedObjective(model, marked, group, precision, placement.half)
    parts = ShardedParameters(model, fragments, precision, group)
    return HeldModel(model, parts, objective, ShardedRows(group, parts))
