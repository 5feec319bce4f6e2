"""Choice of an attempt to ask into: its leader seems to be live and can be called (design §6.2 step 1)."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.chain.chain import Chain
from coordinator.core.context import Core
from coordinator.core.lateness import LEADING, RESULT, Stage, round_number
from coordinator.group.group import leader_of
from dht.identity import PeerId

LEADERS_TOLD = 3  # a join goes to the attempt's leader and the next two, if all leaders do not fit into one group


def first_attempt_with_leader(core: Core, chain: Chain, attempt: int, now: float) -> int:
    """Return the first attempt from this one on whose leader seems to be live and, if possible, can be called."""
    coming = range(attempt, attempt + len(chain.leaders()))
    able = [one for one in coming if _can_lead(core, chain, leader_of(chain, one), now)]
    return next(iter(_preferred(able, core, chain) + able), attempt)


def first_leaders(chain: Chain, attempt: int) -> tuple[PeerId, ...]:
    """Return the leaders of this attempt and of the next ones."""
    order = chain.leaders()
    start = attempt % len(order)
    return (order[start:] + order[:start])[:LEADERS_TOLD]


def _can_lead(core: Core, chain: Chain, leader: PeerId, now: float) -> bool:
    """Whether this peer seems to be live and to take part."""
    presence = core.presence
    if leader in presence.unheard or _is_hurried(core, chain, leader, LEADING):
        return False  # its roster would not reach us either, or it did not lead when it had its turn (docs/adr/0043)
    if core.crowded(chain, now) and leader not in chain.newest_roster():
        return False  # it may get no seat in its own roster
    if leader == core.me or presence.is_training(leader, now):
        return True
    return presence.is_live(leader, now) and core.witnesses_needed(chain.active_set(), now)


def _preferred(attempts: Sequence[int], core: Core, chain: Chain) -> list[int]:
    """Return the attempts whose leader can be called and was prompt with its last results.

    If more than a third of these leaders were late, return them all. Some of so many may be honest, and peers that
    did not wait for them would ask elsewhere than we do.
    """
    reached = [attempt for attempt in attempts if core.is_dialable(leader_of(chain, attempt))]
    prompt = [attempt for attempt in reached if not _is_hurried(core, chain, leader_of(chain, attempt), RESULT)]
    return prompt if 3 * len(prompt) >= 2 * len(reached) else reached


def _is_hurried(core: Core, chain: Chain, peer: PeerId, stage: Stage) -> bool:
    """Whether we do not wait for this peer at this stage of the version (docs/adr/0043)."""
    return bool(core.lateness.hurried({peer}, stage, round_number(chain.fragment, chain.version)))
