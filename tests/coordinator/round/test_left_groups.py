"""A member never enters a group again that it left or declined, however often and late its roster is shown.

It may have committed, voted or abstained there. A second time its statements would differ, and two different statements
in one slot ban a key (`coordinator.trust.statement_slots`).
"""

from __future__ import annotations

import pytest

from coordinator.core.actions import Action, Encode, Send
from coordinator.core.events import Encoded, Progress, Received, Tick
from coordinator.engine.engine import Engine
from coordinator.wire.messages import Join, Roster
from dht.identity import PeerId
from dht.statement import Statement
from tests.coordinator.builders import NOW, PACE, Club, digest, presence

CLUB = Club.of(5)
CHAIN = CLUB.chain()
ORDER = CHAIN.leaders()
ME = CLUB.number(ORDER[4])  # leads none of the attempts here
DEADLINE = PACE.round_seconds
ROSTERS = 40  # more than a peer should remember one by one


class Member:
    """One peer's engine on a clock, with all statements that it sent."""

    def __init__(self) -> None:
        self.engine = Engine(CLUB.core(ME), [CLUB.chain(0), CLUB.chain(1)], [0, 0], NOW)
        self.now = NOW
        self.said: list[Statement] = []
        self.wait(0.0)

    def handle(self, event: object) -> list[Action]:
        actions = self.engine.handle(event, self.now)  # type: ignore[arg-type]
        self.said += [one.message for one in actions if isinstance(one, Send) and isinstance(one.message, Statement)]
        return actions

    def ask_into(self, attempt: int) -> Statement:
        """Let time pass without answers until it asks into this attempt of fragment 0; return its join."""
        while (found := self.join(attempt)) is None:
            assert self.now < NOW + 1000 * DEADLINE
            self.wait(min(self.engine.next_deadline(self.now) - self.now, 1.0))
        return found

    def wait(self, seconds: float) -> None:
        """Let time pass while all peers train."""
        self.now += seconds
        steps = int(self.now)
        for peer in ORDER[:4]:
            self.engine.core.presence.see(peer, presence(beat=steps, steps=steps), self.now)
        self.handle(Progress(steps, 1.0))
        self.handle(Tick())

    def join(self, attempt: int) -> Statement | None:
        joins = [one for one in self.said if one.context.kind == "join" and one.context.fragment == 0]
        return next((one for one in joins if one.read(Join).attempt == attempt), None)

    def shown(self, roster: Statement, by: PeerId | None = None) -> list[Action]:
        return self.handle(Received(by or PeerId(roster.sender), roster))

    def words(self, roster: Statement) -> list[str]:
        """Return the kinds of its statements in this group, each statement once."""
        found = {one.digest: one.context.kind for one in self.said if one.context.group == roster.digest}
        return sorted(found.values())

    def commit(self, entered: list[Action]) -> None:
        """Hand it its encoded contribution."""
        (encode,) = [one for one in entered if isinstance(one, Encode)]
        roots = tuple(digest(("part", self.now, partition)) for partition in range(encode.partitions))
        self.handle(Encoded(encode.key, 800, 8, 0, 8, roots, (1.0,)))

    def leave(self) -> None:
        """Wait until the group that it is in has failed."""
        attempt = self.engine.machines[0].attempt
        assert attempt is not None
        self.wait(attempt.timeline.end - self.now)
        assert self.engine.machines[0].attempt is None


def roster(own: Statement, attempt: int, revision: int = 0, voids: int = 0) -> Statement:
    """Make a roster of this attempt with us in it, but without its leader, so that several do not convict it."""
    leader = ORDER[attempt % 5]
    others = [CLUB.number(peer) for peer in ORDER[:4] if peer != leader]
    joins = [own, *(CLUB.join(other, CHAIN, attempt, expires_unix_seconds=int(NOW) + 100_000) for other in others)]
    body = Roster(attempt=attempt, revision=revision, joins=tuple(joins), voids=voids)
    return CLUB.say(CLUB.number(leader), "roster", body, **CLUB.at(CHAIN))


def test_a_group_that_was_declined_is_not_entered_later() -> None:
    """It has abstained there. Once it remembered that for some dozens of rosters only, and a leader can sign more."""
    member = Member()
    first, second = member.ask_into(0), member.ask_into(1)
    member.commit(member.shown(roster(second, 1)))
    declined = [roster(first, 0, voids=number) for number in range(ROSTERS)]
    for one in declined:
        member.shown(one)
    assert member.words(declined[0]) == ["abstain"]
    member.leave()
    for one in declined:
        assert not any(isinstance(action, Encode) for action in member.shown(one))
        assert member.words(one) in ([], ["abstain"])


@pytest.mark.parametrize("revision", [0, 1])
@pytest.mark.parametrize("by", [0, 3], ids=["by its leader", "at second hand"])
def test_a_group_that_came_to_nothing_is_not_entered_again(revision: int, by: int) -> None:
    member = Member()
    own = member.ask_into(0)
    left = roster(own, 0, revision)
    member.commit(member.shown(left))
    member.leave()
    said = member.words(left)
    assert said == ["abstain", "commit"]
    for again in (left, roster(own, 0, 0, voids=1), roster(own, 0, revision)):
        assert not any(isinstance(action, Encode) for action in member.shown(again, ORDER[by]))
    assert member.words(left) == said


def test_an_earlier_revision_is_passed_by_for_good() -> None:
    """A member never goes back to a revised draft, neither while it is in the later one nor after that."""
    member = Member()
    own = member.ask_into(0)
    draft, revised = roster(own, 0), roster(own, 0, revision=1)
    member.commit(member.shown(draft))
    member.wait(0.1)
    member.commit(member.shown(revised))
    for _ in range(2):
        assert not any(isinstance(action, Encode) for action in member.shown(draft))
        assert member.words(draft) == ["commit"]
        if member.engine.machines[0].attempt is not None:
            member.leave()


def test_memory_of_groups_is_bounded_by_the_attempts_that_it_asked_into() -> None:
    member = Member()
    for attempt in [number for number in range(20) if number % 5 != 4]:
        own = member.ask_into(attempt)
        for revision in range(3):
            member.shown(roster(own, attempt, revision))
        joining = member.engine.machines[0].rounds.joining
        assert joining.own.spoken.keys() <= joining.own.said.keys()
        member.leave()
