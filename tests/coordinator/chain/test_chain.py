"""Facts that follow from a chain of certificates alone (design §6.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.chain import ACTIVE_CERTIFICATES, CHAIN_KEPT, Chain, beacon_order
from coordinator.chain.packed_history import PackedHistory
from dht.identity import PeerId
from tests.coordinator.rigs import PEERS, certificate, chain_of, core, grown

FOUNDERS = PEERS[:5]


def test_at_version_0_the_founders_are_active() -> None:
    chain = chain_of(core())
    assert chain.active_set() == frozenset(FOUNDERS)
    assert (chain.version, chain.digest, chain.state) == (0, chain.genesis, chain.genesis)


def test_the_active_set_is_that_of_the_last_four_rosters() -> None:
    chain = chain_of(core())
    rosters = [PEERS[:5], PEERS[:4], PEERS[1:5], PEERS[1:6], PEERS[1:6], PEERS[1:5]]
    for count, roster in enumerate(rosters, start=1):
        chain.append(certificate(chain, roster))
        assert chain.active_set() == frozenset().union(*rosters[max(0, count - ACTIVE_CERTIFICATES) : count])


def test_a_minor_certificate_makes_its_roster_the_active_set() -> None:
    chain = grown(chain_of(core()), 4, FOUNDERS)
    chain.append(certificate(chain, PEERS[:2]))
    assert chain.active_set() == frozenset(PEERS[:2])
    chain.append(certificate(chain, PEERS[:3]))
    assert chain.active_set() == frozenset(PEERS[:3])


@given(st.lists(st.integers(2, 6), min_size=1, max_size=12), st.data())
def test_truncation_undoes_growth(sizes: list[int], data: st.DataObject) -> None:
    chain = chain_of(core())
    seen: list[tuple[bytes, bytes, frozenset[PeerId], bytes, tuple[PeerId, ...]]] = []
    for size in [5, *sizes]:
        seen.append((chain.digest, chain.state, chain.active_set(), chain.beacon(), chain.leaders()))
        chain.append(certificate(chain, PEERS[:size]))
    version = data.draw(st.integers(0, len(seen) - 1))
    short = chain.truncated(version)
    assert (short.digest, short.state, short.active_set(), short.beacon(), short.leaders()) == seen[version]
    assert [chain.digest_at(number) for number in range(len(seen))] == [entry[0] for entry in seen]
    assert chain.after(version, 3) == tuple(chain.certificates[version : version + 3])


def test_only_the_next_version_of_this_fragment_fits() -> None:
    chain = grown(chain_of(core()), 2, FOUNDERS)
    following = certificate(chain, FOUNDERS)
    assert chain.refusal(following) is None
    assert chain.refusal(chain.certificates[-1]) is not None
    chain.append(following)
    assert chain.refusal(following) is not None


def test_old_certificates_are_forgotten_but_not_what_they_imply() -> None:
    assert CHAIN_KEPT > 100
    own = core()
    chain = grown(Chain(replace(own.rules, chain_kept=10), 0, own.manifest.genesis[0]), 30, FOUNDERS)
    assert len(chain.certificates) == 10
    assert chain.first_version == 21 + ACTIVE_CERTIFICATES - 1
    assert chain.digest_at(20) is None
    assert chain.digest_at(21) is not None
    assert chain.after(19, 5) == ()
    oldest = chain.truncated(chain.first_version)
    assert oldest.active_set() == frozenset(FOUNDERS)
    with pytest.raises(ValueError, match="is not kept"):
        chain.truncated(chain.first_version - 1)
    with pytest.raises(ValueError, match="is not kept"):
        chain.truncated(chain.version + 1)


def test_a_chain_may_start_from_certificates() -> None:
    chain = grown(chain_of(core()), 7, FOUNDERS)
    loaded = Chain(chain.rules, 0, chain.genesis, PackedHistory(chain.certificates))
    assert (loaded.version, loaded.digest, loaded.active_set()) == (7, chain.digest, chain.active_set())


@given(st.binary(max_size=8), st.frozensets(st.sampled_from(PEERS)))
def test_beacon_order_is_a_permutation_that_ignores_the_order_given(beacon: bytes, peers: frozenset[PeerId]) -> None:
    order = beacon_order(beacon, sorted(peers))
    assert frozenset(order) == peers
    assert order == beacon_order(beacon, sorted(peers, reverse=True))
    assert (
        [peer for peer in order if peer != order[0]] == list(beacon_order(beacon, peers - {order[0]}))
        if order
        else True
    )


def test_leaders_change_from_version_to_version() -> None:
    chain = chain_of(core())
    orders = set()
    for _ in range(6):
        orders.add(chain.leaders())
        chain.append(certificate(chain, FOUNDERS))
    assert len(orders) > 2
