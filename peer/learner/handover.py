"""The handover of version 0 from a session to the peer behind it, through the memory that they share."""

from __future__ import annotations

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError
from peer.learner.attached import AttachedSession
from peer.learner.shared_memory import SharedSlots
from peer.model.description import Description, Named
from peer.numerics.fragments import gather, whole_tensors
from peer.storage.anchors import layouts_of


def write_values(slots: SharedSlots, config: RunConfig, values: Named) -> None:
    """Write the values behind the slots."""
    slots.lay_out(gather(layout, values) for layout in layouts_of(config))


def session_description(config: RunConfig, session: AttachedSession) -> Description:
    """Return the run that a session begins, with the values it has written; raises LocalError if they are missing."""
    layouts = layouts_of(config)
    vectors = SharedSlots(session.slots_descriptor, layouts, config.pace.overlap).laid_out()
    if vectors is None:
        raise LocalError("the session has not left its model")
    return Description(config, whole_tensors(layouts, vectors))
