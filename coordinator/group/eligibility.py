"""Conditions for taking part in a fragment's next version, with the reason if we may not. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinator.chain.chain import Chain
from coordinator.core.context import Core
from coordinator.group.pacing import Tempo


class Hindrance(StrEnum):
    """Reasons for not asking into a group for a fragment, in words for people."""

    BEHIND = "lacks its newest state"
    BUSY = "has a round in flight"
    BOUND = "is bound by a vote"
    DRAINING = "begins no more rounds"
    WITHDRAWN = "begins no rounds while the peer pauses"
    UNABLE = "waits until the disk takes votes again"
    NO_TICKET = "waits for its turn, since more peers train than a group takes"
    NOT_NEEDED = "has votes enough without those of a host"
    ALONE = "waits for others to begin with"


@dataclass(frozen=True, slots=True)
class OwnSituation:
    """Our situation at the newest version of a fragment."""

    core: Core
    chain: Chain
    tempo: Tempo
    complete: bool  # whether we hold the state of that version
    busy: bool
    bound: bool  # whether a vote binds us
    follows: bool = False  # whether others have opened the group that we would ask into


def eligibility(state: OwnSituation, now: float) -> tuple[bool, Hindrance | None]:
    """Return whether we may ask into a group, and the reason if not. The most expensive check comes last."""
    found: Hindrance | None
    if not state.complete:
        found = Hindrance.BEHIND
    elif state.busy and not state.follows:
        found = Hindrance.BUSY
    elif state.bound:
        found = Hindrance.BOUND
    else:
        found = hindrance_to_start(state.core, now) or _excess(state, now) or _loneliness(state, now)
    return found is None, found


def lacks_turn(core: Core, chain: Chain, now: float) -> bool:
    """Whether we have no ticket for a first version, so that computing its due time from all trainers is needless."""
    return chain.version == 0 and core.contributes and not core.has_ticket(chain, core.me, now)


def hindrance_to_start(core: Core, now: float) -> Hindrance | None:
    """Return what keeps us from beginning anything new, in a group or in a cell; None if nothing does."""
    if core.draining:
        return Hindrance.DRAINING
    if core.withdrawn:
        return Hindrance.WITHDRAWN
    return Hindrance.UNABLE if now < core.unable_until else None


def _excess(state: OwnSituation, now: float) -> Hindrance | None:
    """Return why we are not needed: a learner without a ticket, or a witness while the active set has votes enough."""
    core, chain, tempo = state.core, state.chain, state.tempo
    if core.contributes:
        turn = core.has_ticket(chain, core.me, now) or tempo.minor_allowed(chain, now)
        return None if turn else Hindrance.NO_TICKET
    needed = core.me in chain.active_set() and tempo.witnesses_needed(chain, now)
    return None if needed else Hindrance.NOT_NEEDED


def _loneliness(state: OwnSituation, now: float) -> Hindrance | None:
    """Return ALONE if too few peers train for a first version: attempts made alone would part us from latecomers."""
    core = state.core
    if state.chain.version > 0 or state.follows:
        return None
    few = len(core.presence.trainers(now)) + core.contributes < core.pace.min_group
    return Hindrance.ALONE if few else None
