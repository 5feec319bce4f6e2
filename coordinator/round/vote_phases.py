"""The phases of a member's vote in a group, and all transitions between them.

A vote is on disk before it is sent, so that this peer cannot contradict it after a restart (design §6.2 step 9). No
transition outside the table happens: no member votes twice, or votes and abstains.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType


class VotePhase(Enum):
    """The phase of our vote."""

    SILENT = auto()
    WRITING = auto()  # the vote is on its way to the disk
    VOTED = auto()
    ABSTAINED = auto()


class VoteStep(Enum):
    """An event that changes the phase."""

    VOTE = auto()  # we know the state after the proposal and agree with it
    WRITTEN = auto()
    NOT_WRITTEN = auto()  # the vote could not be written to disk
    ABSTAIN = auto()


TRANSITIONS: Mapping[tuple[VotePhase, VoteStep], VotePhase] = MappingProxyType(
    {
        (VotePhase.SILENT, VoteStep.VOTE): VotePhase.WRITING,
        (VotePhase.SILENT, VoteStep.ABSTAIN): VotePhase.ABSTAINED,
        (VotePhase.WRITING, VoteStep.WRITTEN): VotePhase.VOTED,
        (VotePhase.WRITING, VoteStep.NOT_WRITTEN): VotePhase.SILENT,
    }
)
