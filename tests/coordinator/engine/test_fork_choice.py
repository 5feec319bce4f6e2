"""A peer's questions to others whose presence says that they are ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from coordinator.core.actions import Send
from coordinator.core.events import PresenceSeen
from coordinator.engine.engine import Engine
from coordinator.engine.fork_choice import ASKED_AT_ONCE, RIVALS_MAX
from coordinator.wire.messages import AskChainNote
from dht.identity import PeerId
from tests.coordinator.builders import Club, presence

LOOK_SECONDS = 3.0  # between two reads of the record store, which returns all records in the order of their keys
AHEAD = {"versions": (9, 9), "heads": (b"h" * 8,) * 2}


def asked(club: Club, ahead: Callable[[PeerId], bool], looks: int) -> Counter[PeerId]:
    """Count how often a peer at version 0 asks each of the others, none of which answers."""
    engine, others = Engine(club.core(0), [club.chain(0), club.chain(1)], [0, 0], 0.0), sorted(club.ids[1:])
    count: Counter[PeerId] = Counter()
    for look in range(looks):
        for peer in filter(ahead, others):
            said = presence(club.number(peer), beat=look, **AHEAD)
            actions = engine.handle(PresenceSeen(peer, said), look * LOOK_SECONDS)
            count.update(one.to for one in actions if isinstance(one, Send) and isinstance(one.message, AskChainNote))
    return count


def test_an_active_peer_is_asked_however_many_strangers_claim_to_be_ahead() -> None:
    club = Club.of(40, founders=4)
    known = set(club.ids[1:4])
    count = asked(club, lambda peer: True, looks=10)
    assert all(count[peer] >= 5 for peer in known)
    assert sum(count.values()) < 10 * 2 * (ASKED_AT_ONCE + len(known)) + 1


def test_every_stranger_has_its_turn_while_the_others_do_not_answer() -> None:
    club = Club.of(RIVALS_MAX + 20, founders=1)
    count = asked(club, lambda peer: True, looks=15)
    assert all(count[peer] == 2 for peer in club.ids[1:]), "once about each of two fragments"


def test_the_only_one_ahead_is_asked_again_if_it_is_known() -> None:
    club = Club.of(4)
    assert asked(club, lambda peer: peer == club.ids[2], looks=12)[club.ids[2]] >= 8
