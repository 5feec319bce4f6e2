"""What follows from a chain of certificates alone (design §6.1): active set, beacon, leaders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import chain as chain_module
from coordinator.chain import ACTIVE_CERTIFICATES, beacon_order
from tests.coordinator.builders import Club, digest

CLUB = Club.of(8, founders=4)
FOUNDERS = (0, 1, 2, 3)


def test_at_version_zero_the_founders_are_active():
    chain = CLUB.chain()
    assert chain.version == 0
    assert chain.active_set() == CLUB.peers(FOUNDERS)
    assert (chain.digest, chain.state) == (CLUB.manifest.genesis[0],) * 2


def test_fragments_have_beacons_of_their_own():
    assert CLUB.chain(0).beacon() != CLUB.chain(1).beacon()


def test_the_active_set_is_everyone_in_the_last_four_rosters():
    chain = CLUB.grow(CLUB.chain(), (0, 1, 2, 3, 4), (0, 1, 2, 3), (0, 1, 2, 5), (0, 1, 2, 3))
    assert chain.active_set() == CLUB.peers((0, 1, 2, 3, 4, 5))
    CLUB.grow(chain, (0, 1, 2, 3))
    assert chain.active_set() == CLUB.peers((0, 1, 2, 3, 5))  # the roster with 4 is the fifth now


def test_the_active_set_goes_back_to_a_minor_certificate_and_no_further():
    chain = CLUB.grow(CLUB.chain(), FOUNDERS, (0, 1))
    assert chain.certificates[-1].outcome.minor
    assert chain.active_set() == CLUB.peers((0, 1))
    CLUB.grow(chain, (0, 1, 6))
    assert not chain.certificates[-1].outcome.minor  # full again, relative to the new active set
    assert chain.active_set() == CLUB.peers((0, 1, 6))


@given(st.lists(st.sets(st.sampled_from(range(8)), min_size=1), max_size=7), st.integers(0, 7))
def test_the_active_set_is_the_union_over_the_window(rosters, cut):
    chain = CLUB.chain()
    for members in rosters:
        active = {CLUB.number(peer) for peer in chain.active_set()}
        roster = sorted(members | active if chain.version == 0 else members)  # a first version is never minor
        CLUB.grow(chain, roster)
    chain = chain.truncated(min(cut, chain.version))
    expected: set[str] = set()
    for certificate in chain.certificates[::-1][:ACTIVE_CERTIFICATES]:
        expected |= set(certificate.outcome.roster)
        if certificate.outcome.minor:
            break
    assert chain.active_set() == (expected or CLUB.peers(FOUNDERS))


def test_leaders_are_the_active_set_in_an_order_that_changes_with_every_version():
    chain = CLUB.grow(CLUB.chain(), range(8))
    orders = [chain.leaders()]
    for _ in range(3):
        CLUB.grow(chain, range(8))
        orders.append(chain.leaders())
    assert all(sorted(order) == sorted(chain.active_set()) for order in orders)
    assert len(set(orders)) == len(orders)


@given(st.sets(st.sampled_from(CLUB.ids)), st.binary(min_size=1, max_size=8))
def test_beacon_order_is_a_permutation_that_ignores_the_order_of_its_input(peers, beacon):
    ordered = beacon_order(beacon, peers)
    assert ordered == beacon_order(beacon, sorted(peers))
    assert sorted(ordered) == sorted(peers)


@given(st.sets(st.sampled_from(CLUB.ids), min_size=2), st.binary(min_size=1, max_size=8), st.data())
def test_who_is_absent_does_not_change_the_order_of_the_others(peers, beacon, data):
    absent = data.draw(st.sampled_from(sorted(peers)))
    whole = beacon_order(beacon, peers)
    assert beacon_order(beacon, peers - {absent}) == tuple(peer for peer in whole if peer != absent)


def test_only_the_next_version_of_this_fragment_is_accepted():
    chain, other = CLUB.chain(), CLUB.chain(1)
    first = CLUB.certify(chain, FOUNDERS)
    assert chain.refusal(first) is None
    assert other.refusal(first) == "is not the next version of this fragment"
    chain.append(first)
    assert chain.refusal(first) == "is not the next version of this fragment"
    assert chain.refusal(CLUB.certify(chain, FOUNDERS)) is None


def test_a_truncated_chain_is_what_the_chain_once_was():
    chain = CLUB.grow(CLUB.chain(), FOUNDERS, (0, 1, 2), (0, 1, 2, 5))
    early = chain.truncated(1)
    assert (early.version, early.certificates) == (1, chain.certificates[:1])
    CLUB.grow(early, (0, 1, 3))
    assert chain.version == 3
    assert chain.certificates[1] != early.certificates[1]
    assert chain.truncated(0).digest == CLUB.manifest.genesis[0]
    with pytest.raises(ValueError, match="version 4 is not kept"):
        chain.truncated(4)


def test_after_gives_what_follows_a_version_oldest_first():
    chain = CLUB.grow(CLUB.chain(), *[FOUNDERS] * 4)
    assert [one.version for one in chain.after(1, 2)] == [2, 3]
    assert [one.version for one in chain.after(0, 9)] == [1, 2, 3, 4]
    assert chain.after(4, 9) == chain.after(99, 9) == CLUB.chain().after(0, 9) == ()


def test_digest_at_knows_every_kept_version_and_no_other():
    chain = CLUB.grow(CLUB.chain(), *[FOUNDERS] * 3)
    known = [chain.digest_at(version) for version in range(4)]
    assert known == [CLUB.manifest.genesis[0], *(one.digest for one in chain.certificates)]
    assert chain.digest_at(4) is chain.digest_at(-1) is CLUB.chain().digest_at(1) is None


def test_a_chain_forgets_what_is_old_and_knows_what_it_forgot(monkeypatch):
    monkeypatch.setattr(chain_module, "CHAIN_KEPT", 6)
    chain = CLUB.grow(CLUB.chain(), *[FOUNDERS] * 10)
    assert [one.version for one in chain.certificates] == [5, 6, 7, 8, 9, 10]
    assert chain.first_version == 8  # the oldest version whose active set follows from what is kept
    assert chain.truncated(8).active_set() == CLUB.peers(FOUNDERS)
    with pytest.raises(ValueError, match="version 7 is not kept"):
        chain.truncated(7)
    assert chain.digest_at(5) == chain.certificates[0].digest
    assert chain.digest_at(4) is chain.digest_at(0) is None
    assert chain.after(3, 9) == ()
    assert [one.version for one in chain.after(4, 9)] == [5, 6, 7, 8, 9, 10]


def test_a_chain_from_disk_is_as_good_as_one_that_grew():
    grown = CLUB.grow(CLUB.chain(), FOUNDERS, (0, 1, 2, 6))
    loaded = CLUB.chain(0, grown.certificates)
    assert (loaded.version, loaded.digest, loaded.leaders()) == (2, grown.digest, grown.leaders())


def test_another_coin_gives_another_beacon():
    one, other = CLUB.chain(), CLUB.chain()
    one.append(CLUB.certify(one, FOUNDERS))
    other.append(CLUB.certify(other, FOUNDERS, coin=digest("other")))
    assert one.beacon() != other.beacon()
