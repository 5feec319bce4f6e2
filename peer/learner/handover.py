"""Version 0 on its way from a session to the peer behind it, through the memory that they share."""

from __future__ import annotations

import os

from torch import Tensor

from coordinator.run.manifest import RunConfig
from peer.learner.attached import AttachedSession
from peer.learner.shared_memory import SharedPlanes
from peer.model.description import Description, Named
from peer.numerics.fragments import gather
from peer.storage.anchors import layouts_of


def write_values(planes: SharedPlanes, config: RunConfig, values: Named) -> None:
    """Leave them where snapshots will lie."""
    for layout in layouts_of(config):
        gather(layout, values, planes.outgoing(layout.index))


def session_description(config: RunConfig, session: AttachedSession) -> Description:
    """The run that a session begins, with what `write_values` has left."""
    planes = SharedPlanes(os.dup(session.planes_descriptor), layouts_of(config))
    values: dict[str, Tensor] = {}
    for layout in layouts_of(config):
        vector = planes.outgoing(layout.index).clone()
        for spec, offset in zip(layout.tensors, layout.offsets, strict=False):
            values[spec.name] = vector[offset : offset + spec.elements].view(spec.shape)
    planes.close_descriptor()
    return Description(config, values)
