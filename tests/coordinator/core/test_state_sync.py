"""The certified state that a peer holds, and how it fetches the newest (design §8, catch-up)."""

from __future__ import annotations

from coordinator.core.actions import Adopt, Discard, FetchState, Included, IncludedUnseen, RoundKey
from coordinator.core.state_sync import (
    FETCH_RETRY_SECONDS,
    HOLDERS_MAX,
    LACKING_INTERVALS,
    UNSERVED_INTERVALS,
    UNSERVED_MAX,
    StateSync,
)
from coordinator.wire.presence import HEAD_BYTES, PresenceTable
from tests.coordinator.builders import NOW, Club, digest, presence

CLUB = Club.of(6)
EVERYONE = tuple(range(6))
OLD = CLUB.grow(CLUB.chain(), EVERYONE)
CHAIN = CLUB.grow(CLUB.chain(0, OLD.certificates), EVERYONE, (0, 1, 2, 3))
NEWEST = CHAIN.certificates[-1]
KEY = RoundKey(0, 1, digest("roster"))
INTERVAL = 4.0


def behind(number=0):
    state_sync = StateSync(CLUB.core(number))
    state_sync.fall_behind(OLD, NOW)
    return state_sync


def test_a_peer_that_falls_further_behind_holds_what_it_held():
    state_sync = StateSync(CLUB.core(0))
    assert state_sync.complete
    state_sync.fall_behind(OLD, NOW)
    state_sync.fall_behind(CHAIN, NOW + 1)
    assert state_sync.behind is not None
    assert not state_sync.complete
    assert state_sync.behind.digest == OLD.digest


def test_the_live_are_asked_first_and_signers_before_others():
    state_sync = behind()
    core = state_sync.core
    core.presence.see(CLUB.ids[2], presence(2), NOW)
    core.presence.see(CLUB.ids[5], presence(5, versions=(3,), heads=(CHAIN.digest[:HEAD_BYTES],)), NOW)
    core.presence.see(CLUB.ids[4], presence(4, versions=(3,), heads=(OLD.digest[:HEAD_BYTES],)), NOW)
    (fetch,) = state_sync.fetch(CHAIN, NOW)
    assert isinstance(fetch, FetchState)
    assert fetch.certificate == NEWEST
    assert fetch.holders[:2] == (CLUB.ids[2], CLUB.ids[5])
    assert set(fetch.holders) == CLUB.peers((1, 2, 3, 5))  # never ourselves, nor peers with another head


def test_peers_ask_in_different_orders_and_each_time_in_another():
    """Else a peer could ask the same hostile signer first, again and again."""
    signers, (one, other) = (
        CLUB.peers((0, 1, 2, 3)),
        ([state_sync.fetch(CHAIN, NOW)[0].holders for _ in range(32)] for state_sync in map(behind, (4, 5))),
    )
    assert {frozenset(holders) for holders in one + other} == {signers}
    assert one != other
    assert {holders[0] for holders in one} == {holders[0] for holders in other} == signers


def test_keys_that_only_say_that_they_have_it_do_not_keep_others_from_being_asked():
    """Signers that seem away may have left just now; all others get their turn (docs/adr/0042)."""
    state_sync, keys = behind(), Club.of(200, seed=1).ids
    for number, key in enumerate(keys):
        head = presence(number, versions=(3,), heads=(CHAIN.digest[:HEAD_BYTES],))
        state_sync.core.presence.see(key, head, NOW)
    asked = [state_sync.fetch(CHAIN, NOW)[0].holders for _ in range(300)]
    assert all(
        NEWEST.voters - {state_sync.core.me} <= set(holders) and len(holders) == HOLDERS_MAX for holders in asked
    )
    assert set(keys) <= {peer for holders in asked for peer in holders}


def test_where_enough_signers_are_there_nobody_else_is_looked_at(monkeypatch):
    """In a large swarm that would mean all peers whose presence we read, with every version."""
    club = Club.of(HOLDERS_MAX + 2)
    chain = club.grow(club.chain(), range(HOLDERS_MAX + 1))
    state_sync = StateSync(club.core(HOLDERS_MAX + 1))
    for number, peer in enumerate(club.ids):
        state_sync.core.presence.see(peer, presence(number), NOW)
    monkeypatch.setattr(PresenceTable, "reports_head", None)  # cannot be called
    (fetch,) = state_sync.fetch(chain, NOW)
    assert len(fetch.holders) == HOLDERS_MAX
    assert set(fetch.holders) < chain.certificates[-1].voters


def test_holders_are_bounded():
    club = Club.of(HOLDERS_MAX + 8)
    chain = club.grow(club.chain(), range(HOLDERS_MAX + 8))
    state_sync = StateSync(club.core(0))
    state_sync.fall_behind(club.chain(), NOW)
    assert len(state_sync.fetch(chain, NOW)[0].holders) == HOLDERS_MAX


def test_a_fetched_state_is_adopted():
    state_sync = behind()
    assert state_sync.fetched(CHAIN) == [Adopt(NEWEST, applied=None)]
    assert state_sync.complete


def test_a_fetched_version_with_our_snapshot_is_adopted_with_it():
    state_sync = behind()
    state_sync.unadopted = Adopt(NEWEST, applied=None, ours=Included(KEY, (True,)), frozen=(False,))
    assert state_sync.fetched(CHAIN) == [
        Adopt(NEWEST, applied=None, ours=Included(KEY, (True,)), frozen=(False,)),
        Discard(KEY),
    ]


def test_a_snapshot_of_an_earlier_version_counts_into_the_newest():
    state_sync = behind()
    middle = CHAIN.certificates[1]
    state_sync.unadopted = Adopt(middle, applied=None, ours=Included(KEY, (True,)), frozen=(True,))
    adopt, _ = state_sync.fetched(CHAIN)
    assert adopt == Adopt(NEWEST, applied=None, ours=Included(KEY, (True,)), frozen=(False,))


def test_work_of_which_no_snapshot_is_left_is_counted_whole():
    state_sync = behind()
    state_sync.included_unseen = True
    assert state_sync.fetched(CHAIN) == [Adopt(NEWEST, applied=None, ours=IncludedUnseen())]
    assert not state_sync.included_unseen


def test_a_version_that_nobody_serves_counts_as_not_existing_after_four_intervals_for_three():
    state_sync = behind()
    patience = LACKING_INTERVALS * INTERVAL
    assert not state_sync.failed(CHAIN, INTERVAL, NOW + patience - 0.1)
    assert state_sync.again_at == NOW + patience - 0.1 + FETCH_RETRY_SECONDS
    assert not state_sync.is_unserved(CHAIN.digest, NOW)
    assert state_sync.failed(CHAIN, INTERVAL, NOW + patience)
    absence = UNSERVED_INTERVALS * INTERVAL
    assert state_sync.is_unserved(CHAIN.digest, NOW + patience + absence - 0.1)
    assert not state_sync.is_unserved(CHAIN.digest, NOW + patience + absence)  # a peer may serve it by then


def test_each_time_that_a_version_is_not_served_it_does_not_exist_for_twice_as_long():
    state_sync, now, absences = behind(), NOW, []
    for _ in range(7):
        now += 1000.0
        assert state_sync.failed(CHAIN, INTERVAL, now)
        absences.append((state_sync.unserved[CHAIN.digest].until - now) / INTERVAL)
    assert absences == [3.0, 6.0, 12.0, 24.0, 48.0, 48.0, 48.0]
    state_sync.fetched(CHAIN)
    assert state_sync.unserved == {}


def test_turning_back_gives_what_is_held_and_frees_the_work():
    state_sync = behind()
    state_sync.unadopted = Adopt(NEWEST, applied=None, ours=Included(KEY, (True,)), frozen=(False,))
    held, actions = state_sync.abandon_missing(NOW)
    assert (held.digest, actions) == (OLD.digest, [Discard(KEY)])
    assert state_sync.complete
    assert state_sync.again_at is None


def test_a_peer_that_began_at_an_invites_heads_never_turns_back_before_them():
    state_sync = StateSync(CLUB.core(0))
    state_sync.fall_behind(CLUB.chain(), NOW)
    state_sync.floor = OLD
    assert not state_sync.failed(OLD, INTERVAL, NOW + 100.0), "the floor itself exists: the invite says so"
    assert state_sync.failed(CHAIN, INTERVAL, NOW + 100.0)
    turned, _ = state_sync.abandon_missing(NOW + 100.0)
    assert turned.digest == OLD.digest
    assert turned is not OLD, "it will grow"
    assert state_sync.behind is not None
    assert state_sync.behind.version == 0
    assert not state_sync.complete
    state_sync.fetched(CHAIN)
    assert state_sync.complete
    assert state_sync.floor is None


def test_unserved_versions_are_bounded():
    state_sync = behind()
    chain = CLUB.chain()
    for _ in range(UNSERVED_MAX + 3):
        CLUB.grow(chain, EVERYONE)
        assert state_sync.failed(chain, INTERVAL, NOW + 100.0)
    assert len(state_sync.unserved) == UNSERVED_MAX
    assert chain.digest in state_sync.unserved
