"""How a learner takes over a new anchor of its fragment (design §6.2 step 10). Pure.

The steps that it has made since a reference go on top: θ ← new + (θ - reference). The reference depends on which part
of this peer's own work the new version holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from coordinator.core.actions import Adopt, Included, IncludedUnseen, NotIncluded, Returned
from coordinator.run.manifest import OuterSpec
from peer.learner.work_counters import Counters
from peer.numerics.fragments import Partitioning

CARRIED_WAY = 0.5  # if everybody carries work over, the anchor moves this share of the way to the losing branch


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The learner's fragment as it went into a round; with error feedback, also the residue of its encoding."""

    vector: Tensor
    counters: Counters
    residue: Tensor | None


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Take the anchor as it is, and drop what the learner holds beyond it."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Take the anchor, or a blend with it, although it has our work: this run keeps no later steps."""

    counted: Counters


@dataclass(frozen=True, slots=True)
class Carry:
    """Keep the steps that the learner made after the snapshot that is in the version."""

    reference: Tensor
    counted: Counters


@dataclass(frozen=True, slots=True)
class Rebase:
    """Keep everything beyond the old anchor, because no version holds it yet."""

    reference: Tensor


@dataclass(frozen=True, slots=True)
class Recontribute:
    """Keep everything beyond the old anchor, and a share of the way back to the branch that we leave."""

    reference: Tensor
    work: Returned


Update = Overwrite | Restart | Carry | Rebase | Recontribute


@dataclass(frozen=True, slots=True)
class Adoption:
    """A new anchor, and what the learner does with it."""

    fragment: int
    new: Tensor
    update: Update

    @property
    def counted(self) -> Counters | None:
        """The counters of our snapshot that is in the version, or None."""
        return self.update.counted if isinstance(self.update, Restart | Carry) else None

    def dropping(self) -> Adoption:
        """Return the same adoption with all work beyond the anchor dropped."""
        return replace(self, update=Overwrite())

    def terms(self) -> tuple[Tensor | None, int, int]:
        """Return the arguments of `Learner.adopt`: the reference, and the steps and tokens that a version holds now.

        The numbers are negative where no version holds that work any more.
        """
        match self.update:
            case Overwrite():
                return None, 0, 0
            case Restart(counted):
                return None, counted.steps, counted.tokens
            case Carry(reference, counted):
                return reference, counted.steps, counted.tokens
            case Rebase(reference):
                return reference, 0, 0
            case Recontribute(reference, work):
                return reference, -work.steps, -work.tokens


def update_of(
    action: Adopt, old: Tensor, new: Tensor, snapshot: Snapshot | None, outer: OuterSpec, partitioning: Partitioning
) -> Update:
    """Decide how the learner takes over this version, by which part of our work is in it.

    `snapshot` is the one that the action names, if we have it.
    """
    frozen = [partitioning.span(partition) for partition, void in enumerate(action.frozen) if void]
    match action.ours:
        case IncludedUnseen():
            return Overwrite()
        case Included(counted=counted):
            if snapshot is None:  # it was lost with the process that took it
                return Overwrite()
            if all(counted) and not frozen and not outer.keeps_later_steps:
                return Restart(snapshot.counters)
            uncounted = [partitioning.span(partition) for partition, ours in enumerate(counted) if not ours]
            reference = _patched(_patched(snapshot.vector, uncounted, old), frozen, new)
            return Carry(reference, snapshot.counters)
        case NotIncluded():
            return Rebase(_patched(old, frozen, new))
        case Returned() as work:
            return Recontribute(_patched(carried(old, new, outer), frozen, new), work)


def _patched(vector: Tensor, spans: Sequence[slice], other: Tensor) -> Tensor:
    """Return the vector itself, or a copy with the other vector's values in these spans.

    A frozen partition is measured against its new anchor, θ ← new + (θ - new), so the learner's own values stay.
    """
    if not spans:
        return vector
    vector = vector.clone()
    for span in spans:
        vector[span] = other[span]
    return vector


def carried(lost: Tensor, won: Tensor, outer: OuterSpec) -> Tensor:
    """Return the reference of a learner that leaves a branch, float32[elements] as both anchors (docs/adr/0027).

    The learner goes on from won + γ(lost - won) plus its work that no version held yet. So γ(won - lost) is in its next
    outer gradient. Through momentum that moves the anchor η/(1 - μ) times as far in the end. γ is chosen to make that
    half of the way.
    """
    share = min(1.0, CARRIED_WAY * (1 - outer.momentum) / outer.learning_rate)
    return lost + (won - lost) * share
