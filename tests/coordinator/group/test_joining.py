"""Joining a group: attempts, their leaders, and statements that must never be contradicted (design §6.2 step 2)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Send
from coordinator.core.events import ReachSeen
from coordinator.core.lateness import LEADING, RESULT, Stage
from coordinator.core.timeline import JOIN_SHARE
from coordinator.group.group import leader_of, read_group
from coordinator.group.joining import ATTEMPTS_AHEAD_MAX, ATTEMPTS_TRIED, GATHERINGS_MAX, Joining
from coordinator.group.own_joins import JOINS_KEPT_MAX
from coordinator.group.roster_building import SUMMONED_MAX, RosterBuilder
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.simulator.keys import virtual_peer_id
from coordinator.wire.messages import ATTEMPT_MAX, Join
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement
from tests.coordinator.rigs import (
    PACE,
    PEERS,
    UNIX_SECONDS,
    certificate,
    chain_of,
    core,
    group_of,
    grown,
    join,
    presence,
)

FIVE = PEERS[:5]


def joining(me: int = 5, live: tuple[PeerId, ...] = FIVE, first_attempt: int = 0) -> Joining:
    own = core(me)
    for peer in live:
        own.presence.see(peer, presence(), 0.0)
    return Joining(own, chain_of(own), first_attempt)


def joins(actions: list[Action]) -> list[tuple[PeerId, Join]]:
    found = []
    for action in actions:
        assert isinstance(action, Send)
        assert isinstance(action.message, Statement)
        found.append((action.to, action.message.read(Join)))
    return found


def test_a_join_goes_to_everybody_who_may_be_in_the_group() -> None:
    """So they see which peers the leader leaves out (docs/adr/0038)."""
    asking = joining()
    said = joins(asking.open(True, 0.0))
    assert {to for to, _ in said} == {*asking.chain.leaders(), PEERS[5]}
    assert {body.leader for _, body in said} == {asking.chain.leaders()[0]}
    assert asking.since == 0.0


def test_a_join_says_from_the_next_attempt_on_whether_others_can_call_us() -> None:
    asking = joining()
    assert all(body.dialable for _, body in joins(asking.open(True, 0.0)))
    asking.core.note(ReachSeen(dialable=False), 1.0)
    assert all(body.dialable for _, body in joins(asking.ask(True, 1.0)))  # a join never changes once it is sent
    asking.void(2.0)
    assert not any(body.dialable for _, body in joins(asking.ask(True, 3.0)))


def test_leaders_that_are_not_there_are_skipped() -> None:
    order = joining().chain.leaders()
    asking = joining(live=order[2:])
    asking.open(True, 0.0)
    assert asking.leader == order[2]


def test_a_leader_that_was_silent_towards_us_is_skipped_until_it_speaks() -> None:
    asking = joining()
    first, second = asking.chain.leaders()[:2]
    asking.core.presence.miss({first})
    asking.open(True, 0.0)
    assert asking.leader == second
    again = joining()
    again.core.presence.miss({first})
    again.core.presence.heard(first)
    again.open(True, 0.0)
    assert again.leader == first


@pytest.mark.parametrize(("stage", "skipped"), [(LEADING, True), (RESULT, True), (("part", 0), False)])
def test_a_leader_that_did_not_lead_or_return_its_results_is_skipped_until_all_try_it_again(
    stage: Stage, skipped: bool
) -> None:
    for versions in range(1, 5):  # in the fourth it is tried
        own = core(5)
        for peer in FIVE:
            own.presence.see(peer, presence(), 0.0)
        asking = Joining(own, grown(chain_of(own), versions, FIVE), 0)
        first, second = asking.chain.leaders()[:2]
        own.lateness.miss([first], stage)
        asking.open(True, 0.0)
        assert asking.leader == (second if skipped and versions < 4 else first)


def test_where_more_than_a_third_of_the_leaders_returned_no_results_none_is_skipped_for_that() -> None:
    own = core(5)
    for peer in FIVE:
        own.presence.see(peer, presence(), 0.0)
    asking = Joining(own, grown(chain_of(own), 1, FIVE), 0)
    first, second = asking.chain.leaders()[:2]
    own.lateness.miss([first, second], RESULT)
    asking.open(True, 0.0)
    assert asking.leader == first


def test_a_leader_that_everybody_can_call_goes_before_one_that_few_can() -> None:
    first, second, third = joining().chain.leaders()[:3]
    asking = joining()
    for peer in (first, second):
        asking.core.presence.see(peer, presence(dialable=False, beat=1), 0.0)
    asking.open(True, 0.0)
    assert asking.leader == third
    nowhere = joining()
    for peer in FIVE:
        nowhere.core.presence.see(peer, presence(dialable=False, beat=1), 0.0)
    nowhere.open(True, 0.0)
    assert nowhere.leader == first, "where nobody can be called, all are as good"


def test_a_leader_asks_past_itself_if_no_peer_can_call_it() -> None:
    leaders = joining().chain.leaders()
    own = joining(me=PEERS.index(leaders[0]))
    own.open(True, 0.0)
    assert own.leader == leaders[0]
    home = joining(me=PEERS.index(leaders[0]))
    home.core.note(ReachSeen(dialable=False), 0.0)
    home.open(True, 0.0)
    assert home.leader == leaders[1]


def test_a_leader_does_not_wait_for_the_join_of_whoever_was_silent() -> None:
    for missed in (False, True):
        leads = joining(me=PEERS.index(chain_of(core()).leaders()[0]))
        absent = next(peer for peer in FIVE if peer != leads.core.me)
        if missed:
            leads.core.presence.miss({absent})
        for peer in FIVE:
            own = {"boot": leads.core.boot} if peer == leads.core.me else {}
            gathering = leads.hear(join(leads.chain, peer, **own), 0.0) if peer != absent else None
            assert gathering is not None or peer == absent
        assert bool(leads.close(leads.gatherings[0], frozenset(), False, 0.0)) is missed


def test_a_leader_waits_a_moment_for_strangers_and_longer_for_those_whom_the_chain_knows() -> None:
    """A peer that only claims to train may never come; if it asks, it gets a seat."""
    for absent, waits in ((PEERS[9], False), (FIVE[0], True)):
        leads = joining(me=PEERS.index(chain_of(core()).leaders()[0]), live=(*FIVE, PEERS[8], PEERS[9]))
        for peer in {*FIVE, PEERS[8], PEERS[9]} - {absent}:
            own = {"boot": leads.core.boot} if peer == leads.core.me else {}
            assert leads.hear(join(leads.chain, peer, **own), 0.0) is not None
        gathering = leads.gatherings[0]
        leads.since = 0.0
        assert gathering.strangers_until() in leads.deadlines(0.0)
        assert gathering.due_at() > gathering.strangers_until()
        summoned = {one.to for one in leads.close(gathering, frozenset(), False, 0.0) if isinstance(one, Send)}
        assert (summoned, gathering.roster) == ({absent} - {*FIVE}, None)
        leads.close(gathering, frozenset(), False, gathering.strangers_until())
        assert (gathering.roster is None) is waits
        assert waits or PEERS[8] in gathering.members


def test_a_leader_calls_a_few_strangers_in_each_attempt_and_others_in_the_next() -> None:
    """It has to dial each peer that it calls, and keys that only publish presence cost nothing."""
    own = core(0)
    chain = chain_of(own)
    chain.append(certificate(chain, FIVE[1:], voters=FIVE[1:]))
    away, few = {FIVE[0]}, {*PEERS[8:]}
    many = {virtual_peer_id(number, 3) for number in range(4 * SUMMONED_MAX)}

    def called(missing: set[PeerId], attempt: int) -> set[PeerId]:
        gathering = RosterBuilder(own, chain, attempt)
        for peer in FIVE[1:]:
            statement = join(chain, peer, attempt=attempt)
            gathering.add(statement, statement.read(Join), 0.0)
        return {one.to for one in gathering.summon(missing) if isinstance(one, Send)}

    assert called(few | away, 0) == few | away, "in a small swarm all are called"
    drawn = [called(many | away, attempt) for attempt in range(16)]
    assert all(len(one) == SUMMONED_MAX + 1 and away < one for one in drawn)
    assert set().union(*drawn) == many | away
    for peer in few:
        own.presence.see(peer, presence(), 0.0)
        own.presence.heard(peer)
    assert all(few | away < called(many | few | away, attempt) for attempt in range(16)), "they have said something"


def test_ghosts_make_no_crowd_of_a_group_that_has_room() -> None:
    asking = joining()
    for number in range(2 * PEERS_PER_GROUP_MAX):
        asking.core.presence.see(virtual_peer_id(number, 3), presence(), 0.0)
    assert not asking.core.crowded(asking.chain, 0.0)
    assert all(asking.core.has_ticket(asking.chain, peer, 0.0) for peer in PEERS)


def test_where_groups_are_full_the_whole_active_set_asks_and_ghosts_only_thin_out_strangers() -> None:
    club = [virtual_peer_id(number, 3) for number in range(4 * PEERS_PER_GROUP_MAX)]
    asking = joining(live=tuple(club))
    newest, older = club[:PEERS_PER_GROUP_MAX], club[4 : PEERS_PER_GROUP_MAX + 4]
    for roster in (older, newest):
        asking.chain.append(certificate(asking.chain, roster, voters=PEERS[:1]))
    assert asking.core.crowded(asking.chain, 0.0)
    assert all(asking.core.has_ticket(asking.chain, peer, 0.0) for peer in {*newest, *older})
    assert not all(asking.core.has_ticket(asking.chain, peer, 0.0) for peer in club)


@pytest.mark.parametrize(("versions", "waits_in_vain"), [(0, True), (1, False)])
def test_founders_who_asked_before_their_first_step_go_on_to_the_next_attempt(
    versions: int, waits_in_vain: bool
) -> None:
    """Once both waited half a round for an attempt without contributors. Later on a member has a vote at least."""
    own = core(0)
    asking = Joining(own, grown(chain_of(own), versions, PEERS), 0)
    for _, body in joins(asking.open(False, 0.0))[:1]:
        assert not body.contributes
        asking.hear(asking.own.said[body.attempt][1], 0.0)
    before = asking.attempt_number
    assert not asking.asked_too_early(contributes=False)
    assert asking.asked_too_early(contributes=True) is waits_in_vain
    asking.meet(True, 1.0)
    assert asking.attempt_number == before + waits_in_vain
    assert not asking.asked_too_early(contributes=True)


def test_the_same_attempt_is_asked_into_with_the_same_words() -> None:
    asking = joining()
    first = asking.open(True, 0.0)
    assert asking.ask(False, 3.0) == first
    assert asking.ask(True, 6.0) == first


def test_a_void_attempt_leads_to_the_next_with_more_leaders_told() -> None:
    asking = joining()
    asking.open(True, 0.0)
    asking.void(5.0)
    assert asking.since is None
    assert asking.not_before > 5.0
    said = joins(asking.open(True, 6.0))
    assert {to for to, _ in said} == {*FIVE, PEERS[5]}
    assert {body.attempt for _, body in said} == {1}


def test_after_many_attempts_that_came_to_nothing_the_first_is_tried_again() -> None:
    """Peers that a vote binds meanwhile come back at the attempt in which they voted."""
    asking = joining()
    tried = []
    for number in range(3 * ATTEMPTS_TRIED):
        [attempt] = {body.attempt for _, body in joins(asking.open(True, 5.0 * number))}
        tried.append(attempt)
        asking.void(5.0 * number + 4)
    assert tried == list(range(ATTEMPTS_TRIED)) * 3
    assert asking.own.first_attempt == 0


def test_a_peer_does_not_come_back_to_a_used_up_attempt() -> None:
    """They could not enter its group any more, and would waste the turn."""
    asking = joining()
    for number in range(ATTEMPTS_TRIED):
        asking.open(True, 5.0 * number)
        asking.void(5.0 * number + 4)
    asking.use_up(3)
    for number in range(ATTEMPTS_TRIED, 3 * ATTEMPTS_TRIED):
        asking.open(True, 5.0 * number)
        assert asking.attempt_number > 3
        asking.void(5.0 * number + 4)


def test_an_attempt_in_which_we_have_spoken_is_not_tried_again() -> None:
    asking = joining()
    for number in range(ATTEMPTS_TRIED):
        asking.open(True, 5.0 * number)
        if number == 0:
            asking.own.speak(group_of(asking.chain, FIVE, 0))
        asking.void(5.0 * number + 4)
    assert asking.attempt_number == ATTEMPTS_TRIED
    asking.open(True, 60.0)
    asking.void(64.0)
    assert asking.attempt_number == 1


def test_a_join_that_has_expired_is_not_said_again_nor_contradicted() -> None:
    """This holds even if our join for an earlier attempt, made later, is still valid."""
    asking = joining()
    asking.attempt_number = 3
    asking.ask(True, 0.0)
    asking.attempt_number = 2
    asking.ask(True, 100.0)
    expired = asking.own.said[3][0]
    assert expired < asking.own.said[2][0]
    asking.attempt_number = 3
    assert {body.attempt for _, body in joins(asking.ask(True, expired))} == {4}
    asking.attempt_number = 2
    assert {body.attempt for _, body in joins(asking.ask(True, expired))} == {2}


@pytest.mark.parametrize(
    ("own", "said", "attempt", "doublings"),
    [
        (0, None, 5, 0),
        (2, None, 5, 2),
        (2, 0, 5, 0),  # the leader's count holds for all
        (0, 2, 5, 0),  # except peers that have seen nothing fail: an early attempt may have a high number
        (2, 1, 5, 1),
        (9, 3, 5, 3),
        (1000, 1000, 1000, 3),  # a leader that lies gains no more than this bound
        (1000, 1000, 1, 1),  # nor more than so early an attempt can have seen: a restarted voter relies on it
        (5, 5, 0, 0),
    ],
)
def test_the_leaders_void_groups_double_the_deadline_of_all(
    own: int, said: int | None, attempt: int, doublings: int
) -> None:
    asking = joining()
    asking.failures = asking.voids = own
    group = replace(group_of(asking.chain, FIVE, attempt), voids=said)
    assert asking.deadline_seconds(group) == PACE.round_seconds * 2**doublings


def test_only_a_group_that_was_void_doubles_the_deadline() -> None:
    """Else a peer that was alone for long would begin again with deadlines and vote locks eight times as long."""
    asking = joining()
    asking.open(True, 0.0)
    asking.void(5.0)
    assert (asking.voids, asking.failures) == (1, 0)
    asking.open(True, 6.0)
    asking.enter(group_of(asking.chain, FIVE, 1))
    asking.void(14.0)
    assert (asking.voids, asking.failures) == (2, 1)


def test_a_leader_says_how_many_groups_were_void() -> None:
    leads = joining(me=PEERS.index(chain_of(core()).leaders()[0]))
    leads.failures = 2
    gathering = leads.hear(join(leads.chain, PEERS[5]), 0.0)
    assert gathering is not None
    for peer in FIVE:
        leads.hear(join(leads.chain, peer), 0.0)
    [roster, *_] = [one.message for one in leads.close(gathering, frozenset(), False, 50.0) if isinstance(one, Send)]
    assert isinstance(roster, Statement)
    assert read_group(roster, leads.chain, UNIX_SECONDS).voids == 2


def test_a_peer_that_drifted_apart_meets_the_others_where_most_are() -> None:
    asking = joining()
    for attempt, peer in zip((4, 4, 9), FIVE, strict=False):
        asking.hear(join(asking.chain, peer, attempt), 0.0)
    asking.open(True, 0.0)
    asking.meet(True, 1.0)
    assert asking.attempt_number == 4


def test_two_halves_that_drifted_apart_meet_at_the_later_attempt() -> None:
    """The leader of the earlier attempt may be silent towards peers at the later one."""
    for own in (0, 1):
        asking = joining(me=0, first_attempt=own)
        for attempt, peer in zip((own, 1 - own, 1 - own), FIVE[1:], strict=False):
            asking.hear(join(asking.chain, peer, attempt), 0.0)
        asking.open(True, 0.0)
        asking.meet(True, 1.0)
        assert asking.attempt_number == 1


def test_a_peer_does_not_meet_in_an_attempt_under_whose_roster_it_has_spoken() -> None:
    """Else all would ask where no roster can have them, because all the others do."""
    asking = joining()
    asking.open(True, 0.0)
    asking.enter(group_of(asking.chain, FIVE))
    asking.void(8.0)
    for peer in FIVE:
        asking.hear(join(asking.chain, peer, 0), 8.0)
    asking.open(True, 9.0)
    asking.meet(True, 10.0)
    assert asking.attempt_number == 1


def test_attempts_that_went_by_while_we_caught_up_count_for_the_deadline() -> None:
    """A peer that asked in vain in the first attempt and met the others in the third waits as long as they do."""
    asking = joining()
    asking.open(True, 0.0)
    for peer in FIVE:
        asking.hear(join(asking.chain, peer, 2), 0.0)
    asking.meet(True, 1.0)
    group = replace(group_of(asking.chain, FIVE), attempt=2, voids=2)
    assert asking.deadline_seconds(group) == 4 * PACE.round_seconds


def test_strangers_do_not_say_where_to_meet() -> None:
    asking = joining()
    for peer in PEERS[6:]:
        asking.hear(join(asking.chain, peer, 7), 0.0)
    asking.open(True, 0.0)
    asking.meet(True, 1.0)
    assert asking.attempt_number == 0
    assert len(asking.announced) == 0


def test_an_attempt_far_away_is_refused() -> None:
    asking = joining()
    with pytest.raises(PeerError, match="far off"):
        asking.hear(join(asking.chain, FIVE[0], ATTEMPTS_AHEAD_MAX + 1), 0.0)


def test_a_peer_that_asked_alone_for_long_is_met_again() -> None:
    """One of two asked alone for two hours; the other came back, refused its joins as far off, and stayed behind."""
    alone, back = joining(0, first_attempt=2 * ATTEMPTS_AHEAD_MAX + 7), joining(1)
    alone.open(True, 0.0)
    back.open(True, 0.0)
    while back.attempt_number < alone.attempt_number:
        before = back.attempt_number
        with suppress(PeerError):
            back.hear(alone.own.said[alone.attempt_number][1], 0.0)
        back.meet(True, 1.0)
        assert before < back.attempt_number <= before + ATTEMPTS_AHEAD_MAX
    assert back.attempt_number == alone.attempt_number


def test_after_the_last_attempt_nobody_asks_any_more() -> None:
    """A hostile peer of two can drag the other there, 256 attempts at a time."""
    asking = joining(first_attempt=ATTEMPT_MAX)
    assert joins(asking.open(True, 0.0)) != []
    asking.own.use_up(ATTEMPT_MAX)
    assert asking.ask(True, 1.0) == []
    assert asking.meet(True, 2.0) == []


def test_used_up_attempts_are_neither_asked_into_nor_gathered() -> None:
    asking = joining(first_attempt=3)
    assert asking.hear(join(asking.chain, FIVE[0], 2), 0.0) is None
    assert {body.attempt for _, body in joins(asking.open(True, 0.0))} == {3}
    for peer in FIVE:
        asking.hear(join(asking.chain, peer, 1), 0.0)
    asking.meet(True, 1.0)
    assert asking.attempt_number == 3


def words(asking: Joining) -> dict[int, bytes]:
    return {attempt: statement.body for attempt, (_, statement) in asking.own.said.items()}


def test_nothing_is_ever_said_twice_in_other_words() -> None:
    """Attempts forgotten by number or by age cannot be entered any more."""
    asking, said = joining(), dict[int, bytes]()
    now = 0.0
    for number in range(80):
        asking.open(number % 3 > 0, now)
        asking.meet(number % 2 > 0, now + 0.5)
        for attempt, body in words(asking).items():
            assert said.setdefault(attempt, body) == body
        assert len(asking.own.said) <= JOINS_KEPT_MAX
        if number % 4 == 0:
            asking.hear(
                join(asking.chain, FIVE[number % 5], max(asking.attempt_number - 3, 0), expires_unix_seconds=2**40), now
            )
        asking.void(now)
        now += 40.0 * (number % 7)


def test_an_attempt_whose_join_has_expired_is_left_behind() -> None:
    """Else all would go back there again and again, and be refused."""
    asking = joining()
    asking.open(True, 0.0)
    asking.ask(True, 10_000.0)
    assert asking.own.first_attempt == asking.attempt_number == 1


def test_gatherings_are_bounded_and_stay_near() -> None:
    asking = joining()
    for attempt in range(3 * GATHERINGS_MAX):
        asking.hear(join(asking.chain, FIVE[0], attempt), 0.0)
    assert sorted(asking.gatherings) == list(range(GATHERINGS_MAX))


def test_a_leader_of_many_void_attempts_can_lead_another() -> None:
    """It keeps the rosters that it issued, but they must not stop it for good."""
    asking = joining(me=0)
    for attempt in range(3 * GATHERINGS_MAX):
        asking.attempt_number = attempt
        gathering = asking.hear(join(asking.chain, FIVE[1], attempt, expires_unix_seconds=2**40), 0.0)
        assert gathering is not None
        gathering.roster = join(asking.chain, FIVE[1])
    assert asking.own.first_attempt == 2 * GATHERINGS_MAX
    assert asking.hear(join(asking.chain, FIVE[1], 0), 0.0) is None


def test_waiting_for_a_roster_ends() -> None:
    asking = joining()
    assert asking.gives_up_at() is None
    asking.open(True, 2.0)
    gives_up_at = asking.gives_up_at()
    assert gives_up_at is not None
    assert 2.0 < gives_up_at <= 2.0 + 2 * JOIN_SHARE * PACE.round_seconds
    assert min(asking.deadlines(2.0)) <= gives_up_at


def test_enough_others_make_a_leader_follow() -> None:
    own = core(0)
    chain: Chain = chain_of(own)
    chain.append(certificate(chain, FIVE))
    asking = Joining(own, chain, 0)
    attempt = next(number for number in range(5) if leader_of(chain, number) == PEERS[0])
    gathering = asking.hear(join(chain, FIVE[1], attempt), 0.0)
    assert gathering is not None
    assert asking.follow(gathering, True, 0.0) == []
    asking.hear(join(chain, FIVE[2], attempt), 0.0)
    assert asking.follow(gathering, True, 0.0)
    assert asking.attempt_number == attempt


@pytest.mark.parametrize(
    ("me", "asking", "follows"),
    [
        (5, (0, 1), True),  # two of five: one of them is honest
        (5, (0,), False),
        (5, (0, 6, 7, 8, 9), False),  # unknown keys prove nothing
        (4, (0, 1, 2, 3), False),  # a member of the newest version knows when the next is due
    ],
)
def test_a_peer_outside_the_newest_version_follows_its_members(me: int, asking: tuple[int, ...], follows: bool) -> None:
    own = core(me)
    chain: Chain = chain_of(own)
    chain.append(certificate(chain, FIVE))
    newcomer = Joining(own, chain, 0)
    attempt = next(number for number in range(5) if leader_of(chain, number) != PEERS[me])
    for number in asking:
        gathering = newcomer.hear(join(chain, PEERS[number], attempt), 0.0)
    assert gathering is not None
    assert bool(newcomer.follow(gathering, True, 0.0)) == follows


def test_a_leader_shows_newcomers_once_who_asks() -> None:
    own = core(0)
    chain: Chain = chain_of(own)
    chain.append(certificate(chain, FIVE))
    leading = Joining(own, chain, 0)
    for peer in PEERS[:7]:
        own.presence.see(peer, presence(), 0.0)
    attempt = next(number for number in range(5) if leading.leads(number))
    shown = []
    for number in (0, 6, 1, 2):  # 0 to 4 are in the newest version, and 5 does not ask
        gathering = leading.hear(join(chain, PEERS[number], attempt), 0.0)
        assert gathering is not None
        shown.append(joined(leading.close(gathering, frozenset(), False, 0.0)))
    assert [len(one) for one in shown] == [0, 0, 2, 0]
    assert {to for to, _ in shown[2]} == {PEERS[5]}
    assert {sender for _, sender in shown[2]} == {PEERS[0], PEERS[1]}


def joined(actions: list[Action]) -> list[tuple[PeerId, PeerId]]:
    """Return the receiver and the author of each sent join."""
    sent = [action for action in actions if isinstance(action, Send)]
    return [(one.to, PeerId(one.message.sender)) for one in sent if isinstance(one.message, Statement)]


def test_attempts_at_a_base_stay_used_up_when_it_becomes_ours_again() -> None:
    asking = joining()
    assert asking.own.used() == 0
    asking.open(True, 0.0)
    asking.void(1.0)
    assert asking.own.used() == 1
    asking.open(True, 2.0)
    assert asking.own.used() == 2
