"""Seats and turns in a swarm that does not fit into one group (design §10)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import more_than_share, votes_needed
from coordinator.chain.chain import ACTIVE_CERTIFICATES, beacon_order
from coordinator.core.tickets import NEW_SEATS, TICKETS, has_ticket, is_full, seated
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.simulator.keys import virtual_peer_id
from dht.statement import digest_of

PEERS = [virtual_peer_id(number, 0) for number in range(4000)]


def beacon(version: int) -> bytes:
    return digest_of(b"test", version.to_bytes(4, "big"))


@given(st.integers(0, 32), st.integers(0, 40), st.integers(0, 40))
def test_seats_are_filled_and_keep_their_order(version, old, new) -> None:
    newest = frozenset(PEERS[: min(old, PEERS_PER_GROUP_MAX)])
    joined = beacon_order(beacon(version), PEERS[:old] + PEERS[100 : 100 + new])
    chosen = seated(joined, newest)
    assert len(chosen) == min(len(joined), PEERS_PER_GROUP_MAX)
    assert [peer for peer in joined if peer in set(chosen)] == list(chosen)
    assert len(newest & set(chosen)) >= min(len(newest & set(joined)), PEERS_PER_GROUP_MAX - NEW_SEATS)


def test_a_full_roster_can_always_certify_and_still_turns_over() -> None:
    """Rosters drawn by tickets and seats, version after version, are never minor, and every peer gets its turn."""
    rosters = [frozenset(PEERS[:PEERS_PER_GROUP_MAX])]
    swarm, served = PEERS[:200], set(PEERS[:PEERS_PER_GROUP_MAX])
    for version in range(400):
        active = frozenset().union(*rosters[-ACTIVE_CERTIFICATES:])
        asking = [peer for peer in swarm if has_ticket(beacon(version), peer, active, len(swarm))]
        roster = frozenset(seated(beacon_order(beacon(version), asking), rosters[-1]))
        assert is_full(roster)
        assert more_than_share(len(roster & active), len(active), 0.5)
        # with as many silent members as two thirds of the roster allow, it still has most of the active set
        assert votes_needed(len(roster)) - NEW_SEATS > len(active) * 0.4
        rosters.append(roster)
        served |= roster
    assert served == set(swarm)


def test_a_draw_gives_as_many_tickets_as_asked_for_whatever_the_swarm() -> None:
    for size in (100, 1000, 4000):
        drawn = [sum(has_ticket(beacon(v), peer, frozenset(), size) for peer in PEERS[:size]) for v in range(20)]
        assert 0.7 * TICKETS < sum(drawn) / len(drawn) < 1.3 * TICKETS


def test_in_a_small_swarm_and_of_those_known_everybody_asks() -> None:
    known = frozenset(PEERS[:8])
    assert all(has_ticket(beacon(1), peer, frozenset(), PEERS_PER_GROUP_MAX) for peer in PEERS[:32])
    assert all(has_ticket(beacon(1), peer, known, 1e6) for peer in known)


def test_a_draw_is_among_those_who_are_not_known() -> None:
    known = frozenset(PEERS[:40])
    assert all(has_ticket(beacon(1), peer, known, len(known) + TICKETS - 1) for peer in PEERS[40:60])
