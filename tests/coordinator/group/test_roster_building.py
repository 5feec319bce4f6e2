"""A leader gathers joins, and members make it include them (design §6.2 steps 2–3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from coordinator.chain.chain import beacon_order
from coordinator.core.actions import Send
from coordinator.core.events import PresenceSeen, Progress, Received
from coordinator.core.tickets import NEW_SEATS, seated
from coordinator.core.timeline import GRACE_SHARE_MAX, JOIN_SHARE, QUORUM_SHARE
from coordinator.engine.engine import Engine
from coordinator.group.group import leader_of, read_group, read_join
from coordinator.group.joining import ATTEMPTS_AHEAD_MAX, GATHERINGS_MAX, Joining
from coordinator.group.roster_building import JOINS_MAX, REVISIONS_MAX, RosterBuilder
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.messages import Roster
from dht.errors import PeerError
from dht.statement import Statement
from tests.coordinator.builders import NOW, PACE, Club, boot, presence

CLUB = Club.of(7, founders=6)
EVERYONE = tuple(range(6))
CHAIN = CLUB.chain()
LEADER = CLUB.number(leader_of(CHAIN, 0))
OTHERS = tuple(number for number in EVERYONE if number != LEADER)


def gathering(club: Club = CLUB, leader: int = LEADER) -> RosterBuilder:
    own = club.core(leader)
    own.boot = boot(leader)  # as in the joins that a club makes
    return RosterBuilder(own, club.chain(), attempt=0)


def hear(gathered: RosterBuilder, statement: Statement, now: float = NOW) -> bool:
    return gathered.add(statement, read_join(statement, gathered.chain, now), now)


def close(
    gathered: RosterBuilder, expected: Sequence[int], silent: Sequence[int] = (), now: float = NOW
) -> Statement | None:
    actions = gathered.close(CLUB.peers(expected), CLUB.peers(silent), minor_allowed=False, now=now)
    statements = {action.message for action in actions if isinstance(action, Send)}
    assert len(statements) <= 1
    return statements.pop() if statements else None


def members(roster: Statement | None) -> set[int]:
    assert roster is not None
    return {CLUB.number(peer) for peer in read_group(roster, CHAIN, NOW).members}


# -- collecting


def test_a_join_is_news_once_per_life():
    gathered, other = gathering(), OTHERS[0]
    assert hear(gathered, CLUB.join(other, CHAIN))
    assert not hear(gathered, CLUB.join(other, CHAIN))
    assert hear(gathered, CLUB.join(other, CHAIN, boot=boot(other, life=2)))
    assert gathered.joins[CLUB.ids[other]][1].boot == boot(other, life=2)


def test_our_own_join_of_an_earlier_life_is_not_ours():
    """A roster with it would speak for that life, which may have issued another one."""
    gathered = gathering()
    assert not hear(gathered, CLUB.join(LEADER, CHAIN, boot=boot(LEADER, life=2)))
    assert hear(gathered, CLUB.join(LEADER, CHAIN))
    assert not hear(gathered, CLUB.join(LEADER, CHAIN, boot=boot(LEADER, life=2)))
    assert gathered.joins[CLUB.ids[LEADER]][1].boot == boot(LEADER)


def test_joins_are_bounded():
    club = Club.of(JOINS_MAX + 3)
    gathered = gathering(club)
    for number in range(JOINS_MAX + 3):
        hear(gathered, club.join(number, gathered.chain))
    assert len(gathered.joins) == JOINS_MAX
    known = 0 if club.ids[0] != gathered.core.me else 1
    assert hear(gathered, club.join(known, gathered.chain, boot=boot(known, life=2)))  # known peers may come back


def test_strangers_do_not_shut_out_the_active_set():
    club = Club.of(JOINS_MAX + 6, founders=4)
    gathered = gathering(club)
    for number in range(JOINS_MAX + 5, -1, -1):  # all strangers first
        hear(gathered, club.join(number, gathered.chain))
    assert gathered.chain.active_set() <= gathered.joins.keys()
    assert len(gathered.joins) == JOINS_MAX


def test_the_quorum_is_of_contributors_and_keeps_its_time():
    gathered = gathering()
    hear(gathered, CLUB.join(0, CHAIN, contributes=False))
    for second, number in enumerate((1, 2, 3, 4)):
        assert (gathered.quorum_at is None) == (second < 3)
        hear(gathered, CLUB.join(number, CHAIN), NOW + second / 10)
    assert (gathered.first_at, gathered.quorum_at) == (NOW, NOW + 0.2)
    assert gathered.due_at() == NOW + 0.2 + gathered.core.grace_seconds()


def test_where_the_quorum_does_not_come_it_is_not_waited_for_all_the_time():
    gathered = gathering()
    assert gathered.due_at() == math.inf
    hear(gathered, CLUB.join(OTHERS[0], CHAIN))
    patience = QUORUM_SHARE * PACE.round_seconds
    assert gathered.due_at() == NOW + patience + gathered.core.grace_seconds()
    for number in (2, 3):
        hear(gathered, CLUB.join(number, CHAIN), NOW + 2 * patience)
    assert gathered.due_at() == NOW + patience + gathered.core.grace_seconds()  # a late quorum does not restart it


def test_the_grace_window_ends_before_members_stop_waiting_for_a_roster():
    """Leader and members use the same deadline, however slow the learners are."""
    core = CLUB.core(LEADER)
    core.steps_per_second = 1e-3
    gathered = RosterBuilder(core, CLUB.chain(), attempt=0)
    assert gathered.core.grace_seconds() == GRACE_SHARE_MAX * PACE.round_seconds
    assert QUORUM_SHARE + GRACE_SHARE_MAX < JOIN_SHARE


# -- closing


def test_a_roster_goes_to_all_its_members_once_everyone_is_there():
    gathered = gathering()
    for number in (0, 1, 2, 3):
        hear(gathered, CLUB.join(number, CHAIN))
    assert close(gathered, expected=EVERYONE) is None
    assert gathered.reason.startswith("grace window open")
    actions = gathered.close(CLUB.peers((0, 1, 2, 3)), frozenset(), minor_allowed=False, now=NOW)
    assert {action.to for action in actions} == CLUB.peers((0, 1, 2, 3))
    assert read_group(actions[0].message, CHAIN, NOW).revision == 0


def test_a_roster_closes_with_the_grace_window():
    gathered = gathering()
    for number in (0, 1, 2, 3):
        hear(gathered, CLUB.join(number, CHAIN))
    assert close(gathered, EVERYONE, now=gathered.due_at() - 0.01) is None
    assert members(close(gathered, EVERYONE, now=gathered.due_at())) == {0, 1, 2, 3}


def test_late_joins_revise_the_roster_a_bounded_number_of_times():
    gathered = gathering()
    for number in (0, 1, 2, 3):
        hear(gathered, CLUB.join(number, CHAIN))
    sizes = [len(members(close(gathered, (0, 1, 2, 3))))]
    assert close(gathered, (0, 1, 2, 3)) is None  # nothing new
    for revision, number in enumerate((4, 5), start=1):
        hear(gathered, CLUB.join(number, CHAIN))
        roster = close(gathered, EVERYONE)
        assert roster is not None
        assert roster.read(Roster).revision == revision
        sizes.append(len(members(roster)))
    assert sizes == [4, 5, 6]
    assert gathered.revision == REVISIONS_MAX
    hear(gathered, CLUB.join(6, CHAIN))
    assert gathered.lacking(frozenset(gathered.members), frozenset()) != []
    assert close(gathered, EVERYONE) is None


def test_of_too_many_the_newest_roster_keeps_most_seats():
    club = Club.of(PEERS_PER_GROUP_MAX + 8, founders=PEERS_PER_GROUP_MAX)
    chain = club.chain()
    gathered = gathering(club, club.number(leader_of(chain, 0)))
    for number in range(PEERS_PER_GROUP_MAX + 8):
        hear(gathered, club.join(number, chain))
    actions = gathered.close(frozenset(club.ids), frozenset(), minor_allowed=False, now=NOW)
    group = read_group(actions[0].message, chain, NOW)
    order = beacon_order(chain.beacon(), club.ids)
    staying = [peer for peer in order if peer in chain.newest_roster()][: PEERS_PER_GROUP_MAX - NEW_SEATS]
    assert set(staying) < group.voters
    assert group.members == seated(order, chain.newest_roster())
    assert not group.minor
    assert gathered.lacking(group.voters, frozenset()) == []  # no seat is left, so no join is lacking


def test_a_silent_member_is_left_out_if_the_others_are_enough():
    gathered = gathering()
    for number in EVERYONE:
        hear(gathered, CLUB.join(number, CHAIN))
    assert members(close(gathered, EVERYONE, silent=OTHERS[:1])) == set(EVERYONE) - {OTHERS[0]}


def test_a_silent_member_is_taken_if_there_is_no_group_without_it():
    gathered = gathering()
    for number in (LEADER, *OTHERS[:3]):
        hear(gathered, CLUB.join(number, CHAIN))
    found = members(close(gathered, (LEADER, *OTHERS[:3]), silent=OTHERS[:2]))
    assert found == {LEADER, *OTHERS[:3]}


# -- members watch the leader


def joined(number: int) -> tuple[Engine, Statement]:
    """Return a founder that asks into attempt 0 of fragment 0, and its join."""
    engine = Engine(CLUB.core(number), [CLUB.chain(0), CLUB.chain(1)], [0, 0], NOW)
    actions = engine.handle(Progress(0, 1.0), NOW)
    for other in EVERYONE:
        if other != number:
            actions += engine.handle(PresenceSeen(CLUB.ids[other], presence(other)), NOW)
    actions += engine.handle(Progress(4, 1.0), NOW + 4.0)  # H/P steps: fragment 0 is due
    asked = [action.message for action in actions if isinstance(action, Send)]
    assert engine.machines[0].joining_since is not None
    assert len(set(asked)) == 1
    return engine, asked[0]


def test_members_answer_a_roster_with_the_joins_that_it_lacks():
    engine, mine = joined(OTHERS[0])
    known = CLUB.join(OTHERS[1], CHAIN)
    others = [CLUB.join(number, CHAIN) for number in (LEADER, *OTHERS[2:])]
    engine.handle(Received(CLUB.ids[OTHERS[1]], known), NOW)
    without = CLUB.roster(CHAIN, [mine, *others])
    answer = engine.handle(Received(CLUB.ids[LEADER], without), NOW)
    assert [(action.to, action.message) for action in answer if isinstance(action, Send)] == [(CLUB.ids[LEADER], known)]
    assert engine.machines[0].attempt is None  # refused
    engine.handle(Received(CLUB.ids[LEADER], CLUB.roster(CHAIN, [mine, known, *others], revision=1)), NOW)
    assert engine.machines[0].attempt is not None
    assert engine.machines[0].attempt.group.revision == 1


def test_after_the_last_revision_members_make_do():
    engine, mine = joined(OTHERS[0])
    engine.handle(Received(CLUB.ids[OTHERS[1]], CLUB.join(OTHERS[1], CHAIN)), NOW)
    joins = [mine, *(CLUB.join(number, CHAIN) for number in (LEADER, *OTHERS[2:]))]
    engine.handle(Received(CLUB.ids[LEADER], CLUB.roster(CHAIN, joins, revision=REVISIONS_MAX)), NOW)
    assert engine.machines[0].attempt is not None


def test_a_process_enters_no_group_that_an_earlier_life_joined():
    engine, _ = joined(OTHERS[0])
    joins = [CLUB.join(number, CHAIN) for number in EVERYONE]  # ours names another boot
    (told,) = engine.handle(Received(CLUB.ids[LEADER], CLUB.roster(CHAIN, joins)), NOW)
    assert told.details["reason"] == "a roster without us in this life"
    assert engine.machines[0].attempt is None


def test_a_join_that_has_expired_is_in_no_roster() -> None:
    gathered = gathering()
    for number in EVERYONE:
        late = {} if number != OTHERS[0] else {"expires_unix_seconds": int(NOW) + 1}
        hear(gathered, CLUB.join(number, CHAIN, **late))
    assert members(close(gathered, EVERYONE, now=NOW + 30)) == set(EVERYONE) - {OTHERS[0]}


# -- joins that a peer receives


def joining() -> Joining:
    return Joining(CLUB.core(LEADER), CLUB.chain(), first_attempt=0)


def test_attempts_far_ahead_are_refused():
    with pytest.raises(PeerError, match="far off"):
        joining().hear(CLUB.join(OTHERS[0], CHAIN, attempt=ATTEMPTS_AHEAD_MAX + 1), NOW)


def test_the_attempts_listened_to_are_bounded_and_near_ours():
    listener = joining()
    for attempt in range(3 * GATHERINGS_MAX, -1, -1):
        listener.hear(CLUB.join(OTHERS[0], CHAIN, attempt=attempt), NOW)
        assert len(listener.gatherings) <= GATHERINGS_MAX
    assert sorted(listener.gatherings) == list(range(GATHERINGS_MAX))
    assert listener.hear(CLUB.join(2, CHAIN, attempt=3 * GATHERINGS_MAX), NOW) is None


def test_used_up_attempts_are_not_heard_of_again():
    listener = joining()
    listener.use_up(4)
    assert listener.hear(CLUB.join(OTHERS[0], CHAIN, attempt=4), NOW) is None
    assert listener.hear(CLUB.join(OTHERS[0], CHAIN, attempt=5), NOW) is not None


def test_a_peer_never_joins_an_attempt_in_other_words():
    asker = joining()
    first = {action.message for action in asker.open(contributes=True, now=NOW)}
    again = {action.message for action in asker.ask(contributes=False, now=NOW + 1)}
    assert first == again
    assert len(first) == 1


def test_peers_that_drifted_apart_meet_at_the_median_attempt():
    asker = joining()
    asker.open(contributes=True, now=NOW)
    for number, attempt in zip(OTHERS[:4], (9, 6, 12, 3), strict=True):
        asker.hear(CLUB.join(number, CHAIN, attempt=attempt), NOW)
    asker.meet(contributes=True, now=NOW)
    assert asker.attempt_number == 6
