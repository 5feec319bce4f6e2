"""A peer's memory of a fragment: vote locks, its state, its own work; and the peers that seem live."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.actions import Adopt, Discard, FetchState, Included, VoteRecord
from coordinator.core.own_work import ROUNDS_KEPT, OwnWork
from coordinator.core.state_sync import (
    FETCH_RETRY_SECONDS,
    LACKING_INTERVALS,
    UNSERVED_INTERVALS,
    UNSERVED_MAX,
    StateSync,
)
from coordinator.core.timeline import LOCK_DEADLINES
from coordinator.core.vote_locks import BASES_MAX, FREE, VoteLocks
from coordinator.engine.fragment import FragmentMachine
from coordinator.wire.presence import FORGET_LIFETIMES, PEERS_KNOWN_MAX, PresenceTable
from dht.identity import PeerId
from tests.coordinator.rigs import PACE, PEERS, certificate, chain_of, core, grown, key_of, presence

FIVE = PEERS[:5]
BASE, OTHER = bytes(32), bytes([1]) * 32


def record(parent: bytes = BASE, attempt: int = 0) -> VoteRecord:
    return VoteRecord(0, 3, parent, attempt, bytes([9]) * 32, FIVE, bytes(32), bytes(32))


# -- bonds


def test_a_vote_of_an_earlier_life_binds_at_its_base_whenever_we_get_there() -> None:
    vote_locks = VoteLocks(core())
    vote_locks.restore(record(), now=100.0)
    assert vote_locks.at(BASE).until == 100.0 + LOCK_DEADLINES * PACE.round_seconds
    assert vote_locks.at(OTHER) == FREE


def test_a_vote_of_a_late_attempt_binds_longer() -> None:
    """Deadlines double after void attempts, and so does the time for which a vote binds."""
    vote_locks = VoteLocks(core())
    vote_locks.restore(record(attempt=2), now=0.0)
    assert vote_locks.at(BASE).until == LOCK_DEADLINES * 4 * PACE.round_seconds


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100)), min_size=1))
def test_bonds_never_loosen(ties: list[tuple[int, float]]) -> None:
    vote_locks = VoteLocks(core())
    for first_attempt, until in ties:
        before = vote_locks.at(BASE)
        vote_locks.extend(BASE, first_attempt, until)
        after = vote_locks.at(BASE)
        assert after.first_attempt == max(before.first_attempt, first_attempt)
        assert after.until == max(before.until, until)


def test_only_bases_that_can_become_ours_again_are_remembered() -> None:
    vote_locks = VoteLocks(core())
    for number in range(3 * BASES_MAX):
        vote_locks.extend(number.to_bytes(32, "big"), 1, 1.0)
    assert len(vote_locks.known) == BASES_MAX
    assert vote_locks.at((0).to_bytes(32, "big")) == FREE


# -- state sync


def behind() -> tuple[StateSync, FragmentMachine]:
    """Make a peer that holds version 2 and knows version 4."""
    own = core(5)
    machine = FragmentMachine(own, grown(chain_of(own), 4, FIVE), held=2, now=0.0)
    return machine.state_sync, machine


def test_a_peer_that_starts_behind_fetches_at_once() -> None:
    state_sync, machine = behind()
    assert (machine.ready, machine.held, machine.chain.version) == (False, 2, 4)
    actions = machine.tick(0.0)
    assert [action.certificate.version for action in actions if isinstance(action, FetchState)] == [4]
    assert state_sync.again_at is None


def test_signers_are_asked_first_and_among_them_those_that_are_there() -> None:
    state_sync, machine = behind()
    for peer in (FIVE[3], FIVE[1], PEERS[7]):
        state_sync.core.presence.see(peer, presence(chains=[machine.chain]), 0.0)
    (action,) = state_sync.fetch(machine.chain, 1.0)
    assert isinstance(action, FetchState)
    assert set(action.holders[:3]) == {FIVE[3], FIVE[1], PEERS[7]}
    assert set(action.holders) == {*FIVE, PEERS[7]}
    assert action.holders.index(PEERS[7]) == 2


def test_every_peer_asks_in_another_order() -> None:
    orders = set()
    for me in range(5, 12):
        own = core(me)
        chain = grown(chain_of(own), 1, FIVE)
        (action,) = StateSync(own).fetch(chain, 0.0)
        assert isinstance(action, FetchState)
        orders.add(action.holders)
    assert len(orders) > 3


def test_a_fetched_state_is_adopted_and_an_outdated_one_is_not() -> None:
    _, machine = behind()
    assert machine.fetched(machine.chain.digest_at(3) or b"", 1.0) == []
    assert not machine.ready
    (action,) = machine.fetched(machine.chain.digest, 1.0)
    assert action == Adopt(machine.chain.certificates[-1], applied=None)
    assert machine.ready
    assert machine.held == 4


def test_a_version_that_nobody_serves_is_turned_back_from() -> None:
    state_sync, machine = behind()
    interval = PACE.round_seconds  # no peer is known to make steps
    lost = machine.chain.digest
    assert machine.fetch_failed(lost, 5.0) == []
    assert state_sync.again_at == 5.0 + FETCH_RETRY_SECONDS
    assert machine.fetch_failed(lost, LACKING_INTERVALS * interval)
    assert (machine.chain.version, machine.ready) == (2, True)
    assert state_sync.is_unserved(lost, LACKING_INTERVALS * interval + 1)
    assert not state_sync.is_unserved(lost, (LACKING_INTERVALS + UNSERVED_INTERVALS) * interval + 1)


def test_every_newer_version_gets_its_own_time_to_be_served() -> None:
    state_sync, machine = behind()
    machine.advance(certificate(machine.chain, FIVE), 20.0)
    assert state_sync.lacking_since == 20.0
    assert machine.held == 2
    assert machine.fetch_failed(machine.chain.digest, 25.0) == []


def test_unserved_versions_are_bounded() -> None:
    state_sync = StateSync(core())
    for number in range(3 * UNSERVED_MAX):
        chain = grown(chain_of(core()), 1, FIVE, salt=bytes([number]))
        state_sync.fall_behind(chain_of(core()), 0.0)
        assert state_sync.failed(chain, 1.0, 1000.0)
    assert len(state_sync.unserved) == UNSERVED_MAX


def contributed(machine: FragmentMachine, version: int) -> Adopt:
    """Make the adoption of this version as if it held our work, with the snapshot still here."""
    outcome = machine.chain.certificates[version - 1]
    return Adopt(outcome, None, Included(key_of(machine.chain, b"snapshot"), (True, False)), frozen=(False, True))


def test_work_in_a_version_that_came_late_counts_when_its_state_is_adopted() -> None:
    state_sync, machine = behind()
    state_sync.unadopted = contributed(machine, 4)
    adopt, discard = machine.fetched(machine.chain.digest, 1.0)
    assert isinstance(adopt, Adopt)
    assert (adopt.snapshot, adopt.frozen) == (key_of(machine.chain, b"snapshot"), (False, True))
    assert discard == Discard(key_of(machine.chain, b"snapshot"))


def test_fragments_frozen_then_may_have_moved_by_the_fetched_version() -> None:
    state_sync, machine = behind()
    state_sync.unadopted = contributed(machine, 3)
    adopt, _ = machine.fetched(machine.chain.digest, 1.0)
    assert isinstance(adopt, Adopt)
    assert adopt.certificate.version == 4
    assert adopt.ours == Included(key_of(machine.chain, b"snapshot"), (True, False))
    assert adopt.frozen == (False, False)


@pytest.mark.parametrize(("fork", "kept"), [(2, False), (3, True)])
def test_a_change_of_branch_drops_what_only_the_other_branch_counted(fork: int, kept: bool) -> None:
    state_sync, machine = behind()
    state_sync.unadopted = included = contributed(machine, 3)
    rival = grown(machine.chain.truncated(fork), 3, FIVE[:4], salt=b"rival")
    actions = machine.switch(rival, fork, 5.0)
    assert (state_sync.unadopted is not None) == kept
    assert included.snapshot is not None
    assert (Discard(included.snapshot) in actions) == (not kept)
    assert (machine.chain.digest, machine.ready, machine.held) == (rival.digest, False, 2)


def test_after_a_change_of_branch_the_held_chain_is_still_the_old_one() -> None:
    """A checkpoint written in between must have the certificates of its own state."""
    own = core(5)
    machine = FragmentMachine(own, grown(chain_of(own), 4, FIVE), held=4, now=0.0)
    old = machine.chain.digest
    machine.switch(grown(machine.chain.truncated(2), 2, FIVE[:4], salt=b"rival"), 2, 5.0)
    assert machine.held_chain.digest == old
    machine.fetched(machine.chain.digest, 6.0)
    assert machine.held_chain is machine.chain


# -- the ledger of our own work


def test_there_is_something_to_bring_once_a_step_was_made() -> None:
    ledger = OwnWork(FIVE[0])
    assert not ledger.has_new_steps(0)
    assert ledger.has_new_steps(1)
    outcome = certificate(chain_of(core()), FIVE).outcome
    ledger.note_contribution(outcome.roster_id, 7)
    assert ledger.has_new_steps(7)
    ledger.count(outcome.roster_id, outcome)
    assert not ledger.has_new_steps(7)
    assert ledger.has_new_steps(8)


def test_work_of_an_earlier_life_is_not_brought_again() -> None:
    ledger = OwnWork(FIVE[0])
    outcome = certificate(chain_of(core()), FIVE).outcome
    assert not ledger.knows(outcome)
    assert OwnWork(PEERS[9]).knows(outcome)
    ledger.count_all(12)
    assert not ledger.has_new_steps(12)


def test_work_that_both_branches_hold_is_known() -> None:
    """We gave 5 steps to a round of the rival's; our branch counts 9 steps, which include them."""
    ledger = OwnWork(FIVE[0])
    chain = chain_of(core())
    theirs, ours = (certificate(chain, FIVE, salt=salt).outcome for salt in (b"theirs", b"ours"))
    ledger.note_contribution(theirs.roster_id, 5)
    assert not ledger.knows(theirs)
    ledger.note_contribution(ours.roster_id, 9)
    ledger.count(ours.roster_id, ours)
    assert ledger.knows(theirs)


def test_the_ledger_is_bounded() -> None:
    ledger = OwnWork(FIVE[0])
    for number in range(3 * ROUNDS_KEPT):
        ledger.note_contribution(number.to_bytes(32, "big"), number)
    assert len(ledger.contributed) == ROUNDS_KEPT


# -- presence


def table() -> PresenceTable:
    return PresenceTable(lifetime_seconds=9.0)


def test_a_peer_is_there_for_a_lifetime_after_its_newest_record() -> None:
    known = table()
    known.see(FIVE[0], presence(steps=1), 0.0)
    known.see(FIVE[0], presence(steps=2), 5.0)
    assert known.is_live(FIVE[0], 14.0)
    assert not known.is_live(FIVE[0], 14.1)


def test_an_old_record_read_again_keeps_nobody_alive_but_a_new_one_of_a_peer_at_rest_does() -> None:
    known = table()
    resting = presence("hosting", steps=0, rate=0.0)
    known.see(FIVE[0], resting, 0.0)
    known.see(FIVE[0], resting, 8.0)
    assert not known.is_live(FIVE[0], 10.0)
    known.see(FIVE[0], presence("hosting", steps=0, rate=0.0, beat=1), 11.0)
    assert known.is_live(FIVE[0], 12.0)


def test_a_lost_peer_is_there_again_once_anything_is_heard_of_it() -> None:
    known = table()
    known.see(FIVE[0], presence(), 0.0)
    known.lose(FIVE[0])
    assert known.live(1.0) == frozenset()
    known.heard(FIVE[0])
    assert known.live(1.0) == {FIVE[0]}
    known.lose(FIVE[0])
    known.see(FIVE[0], presence(steps=3), 2.0)
    assert known.live(2.0) == {FIVE[0]}


def test_trainers_are_those_whose_learners_run() -> None:
    known = table()
    for number, state in enumerate(("training", "paused", "hosting", "draining", "catching up")):
        known.see(FIVE[number], presence(state), 0.0)  # type: ignore[arg-type]
    assert known.trainers(0.0) == {FIVE[0]}
    assert known.live(0.0) == set(FIVE)


def test_the_table_is_bounded_and_the_silent_make_room() -> None:
    known = table()
    names = [PeerId(f"peer {number}") for number in range(PEERS_KNOWN_MAX + 10)]
    for name in names:
        known.see(name, presence(), 0.0)
        known.lose(name)
    assert len(known.sightings) == PEERS_KNOWN_MAX
    assert known.gone <= known.sightings.keys()
    later = FORGET_LIFETIMES * known.lifetime_seconds + 1
    known.see(names[-1], presence(), later)
    assert list(known.sightings) == [names[-1]]
    assert known.gone == set()


def test_every_change_is_seen_by_its_revision() -> None:
    known, seen = table(), set()
    for step, change in enumerate(
        (
            lambda: known.see(FIVE[0], presence(steps=1), 0.0),
            lambda: known.see(FIVE[0], presence(steps=2), 0.0),
            lambda: known.lose(FIVE[0]),
            lambda: known.heard(FIVE[0]),
        )
    ):
        change()
        seen.add(known.revision)
        assert len(seen) == step + 1


def test_heads_are_compared_by_their_beginning() -> None:
    known, chain = table(), grown(chain_of(core()), 2, FIVE)
    known.see(FIVE[0], presence(chains=[chain]), 0.0)
    assert known.reports_head(FIVE[0], 0, chain.digest)
    assert not known.reports_head(FIVE[0], 0, chain.genesis)
    assert not known.reports_head(FIVE[0], 1, chain.digest)
    assert not known.reports_head(FIVE[1], 0, chain.digest)
