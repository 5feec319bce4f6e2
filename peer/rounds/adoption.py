"""What a learner does with its fragment when there is a new anchor for it (design §6.2 step 10). Pure.

What it learned since goes on top: θ ← new + (θ - reference). What that is measured against depends on what of our own
work the new version holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from coordinator.core.actions import Adopt, Included, IncludedUnseen, NotIncluded, Returned
from coordinator.run.manifest import OuterSpec
from peer.learner.work_counters import Counters
from peer.numerics.fragments import Partitioning

CARRIED_WAY = 0.5  # of the way to the losing branch that the anchor goes if everybody carries it


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The learner's fragment as it went into a round; with error feedback, what its encoding leaves to the next one."""

    vector: Tensor
    counters: Counters
    residue: Tensor | None


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Take the anchor as it is. What the learner holds beyond it goes."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Take the anchor, or a blend with it, although work of ours is in it: such a run keeps no later step."""

    counted: Counters


@dataclass(frozen=True, slots=True)
class Carry:
    """Keep what was learned after the snapshot that is in the version."""

    reference: Tensor
    counted: Counters


@dataclass(frozen=True, slots=True)
class Rebase:
    """Keep everything beyond the old anchor: no version holds it yet."""

    reference: Tensor


@dataclass(frozen=True, slots=True)
class BringAgain:
    """Keep everything beyond the old anchor, and a share of the way to it from the branch that we leave."""

    reference: Tensor
    work: Returned


Update = Overwrite | Restart | Carry | Rebase | BringAgain


@dataclass(frozen=True, slots=True)
class Adoption:
    """A new anchor, and what the learner does with it."""

    fragment: int
    new: Tensor
    update: Update

    @property
    def counted(self) -> Counters | None:
        """Our snapshot that is in the version."""
        return self.update.counted if isinstance(self.update, Restart | Carry) else None

    def dropping(self) -> Adoption:
        """The same anchor, where nothing that the learner holds beyond it is of use any more."""
        return replace(self, update=Overwrite())

    def terms(self) -> tuple[Tensor | None, int, int]:
        """For `Learner.adopt`: the reference, and steps and tokens that a version holds now; negative: none does."""
        match self.update:
            case Overwrite():
                return None, 0, 0
            case Restart(counted):
                return None, counted.steps, counted.tokens
            case Carry(reference, counted):
                return reference, counted.steps, counted.tokens
            case Rebase(reference):
                return reference, 0, 0
            case BringAgain(reference, work):
                return reference, -work.steps, -work.tokens


def update_of(
    action: Adopt, old: Tensor, new: Tensor, snapshot: Snapshot | None, outer: OuterSpec, partitioning: Partitioning
) -> Update:
    """What follows from what of ours is in the version. `snapshot`: the one that the action names, if we have it."""
    frozen = [partitioning.span(partition) for partition, void in enumerate(action.frozen) if void]
    match action.ours:
        case IncludedUnseen():
            return Overwrite()
        case Included(counted=counted):
            if snapshot is None:  # it went with the process that it was of
                return Overwrite()
            if all(counted) and not frozen and not outer.keeps_later_steps:
                return Restart(snapshot.counters)
            uncounted = [partitioning.span(partition) for partition, ours in enumerate(counted) if not ours]
            reference = _patched(_patched(snapshot.vector, uncounted, old), frozen, new)
            return Carry(reference, snapshot.counters)
        case NotIncluded():
            return Rebase(_patched(old, frozen, new))
        case Returned() as work:
            return BringAgain(_patched(carried(old, new, outer), frozen, new), work)


def _patched(vector: Tensor, spans: Sequence[slice], other: Tensor) -> Tensor:
    """The vector itself, or a copy that is as the other one in these spans.

    A frozen partition is measured against its new anchor: θ ← new + (θ - new), so the learner's own values stay.
    """
    if not spans:
        return vector
    vector = vector.clone()
    for span in spans:
        vector[span] = other[span]
    return vector


def carried(lost: Tensor, won: Tensor, outer: OuterSpec) -> Tensor:
    """What a learner that leaves a branch measures itself against, float32[elements] as both anchors (docs/adr/0027).

    It goes on from won + γ(lost - won) with what it had not brought yet, so γ(won - lost) is in its next outer
    gradient. Through momentum that takes the anchor η/(1 - μ) times as far in the end: γ makes it half of the way.
    """
    share = min(1.0, CARRIED_WAY * (1 - outer.momentum) / outer.learning_rate)
    return lost + (won - lost) * share
