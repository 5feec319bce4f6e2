"""What a member has said in a group about its outcome: every phase, and all that leads from one to another.

A vote is written to disk before anybody hears it, so that no later life of this peer says anything else (design §6.2
step 9). What is not in the table does not happen: nobody votes twice, and nobody votes and abstains.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType


class VotePhase(Enum):
    """Where we are."""

    SILENT = auto()
    WRITING = auto()  # the vote is on its way to the disk
    VOTED = auto()
    ABSTAINED = auto()


class VoteStep(Enum):
    """What moves us on."""

    VOTE = auto()  # we know the state that the proposal leads to, and take it for right
    WRITTEN = auto()
    NOT_WRITTEN = auto()  # the disk does not take it
    ABSTAIN = auto()


TRANSITIONS: Mapping[tuple[VotePhase, VoteStep], VotePhase] = MappingProxyType(
    {
        (VotePhase.SILENT, VoteStep.VOTE): VotePhase.WRITING,
        (VotePhase.SILENT, VoteStep.ABSTAIN): VotePhase.ABSTAINED,
        (VotePhase.WRITING, VoteStep.WRITTEN): VotePhase.VOTED,
        (VotePhase.WRITING, VoteStep.NOT_WRITTEN): VotePhase.SILENT,
    }
)
