"""A peer's vote locks at its bases, and its knowledge of its own work (design §6.2 step 9)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.actions import VoteRecord
from coordinator.core.own_work import ROUNDS_KEPT, OwnWork
from coordinator.core.timeline import LOCK_DEADLINES
from coordinator.core.vote_locks import BASES_MAX, FREE, VoteLock, VoteLocks
from tests.coordinator.builders import NOW, PACE, Club, digest

CLUB = Club.of(4)
CHAIN = CLUB.chain()
BASE = digest("base")


def vote_locks():
    return VoteLocks(CLUB.core(0))


def record(attempt, parent=BASE):
    return VoteRecord(0, 0, parent, attempt, digest("roster"), tuple(CLUB.ids), digest("outcome"), digest("state"))


def test_where_nothing_was_said_nothing_binds():
    assert vote_locks().at(BASE) == FREE == VoteLock(0, 0.0)


def test_a_vote_of_an_earlier_life_binds_for_three_deadlines():
    kept = vote_locks()
    kept.restore(record(attempt=0), NOW)
    assert kept.at(BASE) == VoteLock(0, NOW + LOCK_DEADLINES * PACE.round_seconds)
    assert kept.at(digest("other")) == FREE


def test_later_attempts_had_longer_deadlines():
    until = []
    for attempt in range(6):
        kept = vote_locks()
        kept.restore(record(attempt), NOW)
        until.append((kept.at(BASE).until - NOW) / (LOCK_DEADLINES * PACE.round_seconds))
    assert until == [1, 2, 4, 8, 8, 8]


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100)), min_size=1, max_size=9))
def test_bonds_never_loosen_but_by_time(ties):
    kept = vote_locks()
    for first_attempt, until in ties:
        kept.extend(BASE, first_attempt, until)
    assert kept.at(BASE) == VoteLock(max(one for one, _ in ties), max(until for _, until in ties))


def test_the_bases_remembered_are_bounded_and_the_newest():
    kept = vote_locks()
    kept.extend(BASE, 1, 0.0)
    for number in range(BASES_MAX - 1):
        kept.extend(digest(number), number + 1, 0.0)
    kept.extend(BASE, 2, 0.0)  # used again, so it counts as new
    kept.extend(digest("one more"), 1, 0.0)
    kept.extend(digest("where we said nothing"), 0, 0.0)
    assert len(kept.known) == BASES_MAX
    assert kept.at(BASE) == VoteLock(2, 0.0)
    assert digest(0) not in kept.known


# -- the ledger


ME = CLUB.ids[0]
OUTCOME = CLUB.outcome(CHAIN, (0, 1, 2))
WITHOUT_ME = CLUB.outcome(CHAIN, (1, 2, 3))


def test_a_peer_brings_steps_that_no_version_holds():
    ledger = OwnWork(ME)
    assert not ledger.has_new_steps(0)
    assert ledger.has_new_steps(1)
    ledger.note_contribution(OUTCOME.roster_id, 7)
    assert ledger.has_new_steps(7)  # given, but not certified
    ledger.count(OUTCOME.roster_id, OUTCOME)
    assert not ledger.has_new_steps(7)
    assert ledger.has_new_steps(8)


def test_counted_work_never_grows_less():
    ledger = OwnWork(ME)
    ledger.count_all(9)
    ledger.note_contribution(OUTCOME.roster_id, 7)
    ledger.count(OUTCOME.roster_id, OUTCOME)
    ledger.count_all(3)
    assert ledger.counted_steps == 9


def test_a_round_of_an_earlier_life_is_not_known():
    ledger = OwnWork(ME)
    assert not ledger.knows(OUTCOME)  # it holds work of ours, and we cannot say how much
    assert ledger.knows(WITHOUT_ME)
    ledger.note_contribution(OUTCOME.roster_id, 7)
    assert not ledger.knows(OUTCOME)  # given, but not counted yet: we would contribute it again
    ledger.count(OUTCOME.roster_id, OUTCOME)
    assert ledger.knows(OUTCOME)


def test_the_rounds_remembered_are_bounded():
    ledger = OwnWork(ME)
    for number in range(ROUNDS_KEPT + 5):
        ledger.note_contribution(digest(number), number)
    assert len(ledger.contributed) == ROUNDS_KEPT
    assert digest(4) not in ledger.contributed
