"""Certificates: the conditions for a version to exist (design §6.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import (
    Certificate,
    Contributor,
    PartitionOutcome,
    enough_votes,
    is_minor,
    more_than_share,
    votes_needed,
)
from dht.identity import PeerId
from dht.statement import Statement
from tests.coordinator.rigs import PEERS, certificate, chain_of, core, say

peers = st.frozensets(st.sampled_from(PEERS), min_size=1)
shares = st.sampled_from([0.0, 0.34, 0.5, 0.67])


def test_votes_needed_are_those_of_the_design() -> None:
    assert [votes_needed(voters) for voters in range(1, 9)] == [1, 2, 3, 3, 4, 5, 5, 6]


@given(st.integers(1, 1000))
def test_votes_needed_are_the_fewest_above_two_thirds(voters: int) -> None:
    needed = votes_needed(voters)
    assert 3 * needed > 2 * voters >= 3 * (needed - 1)


@given(peers, peers, peers, shares)
def test_enough_votes_as_a_slow_reader_would_count(
    voters: frozenset[PeerId], roster: frozenset[PeerId], active: frozenset[PeerId], share: float
) -> None:
    inside = [voter for voter in voters if voter in roster]
    of_active = [voter for voter in inside if voter in active]
    could_be_full = len([peer for peer in roster if peer in active]) > share * len(active)
    expected = 3 * len(inside) > 2 * len(roster) and (not could_be_full or len(of_active) > share * len(active))
    assert enough_votes(voters, roster, active, share) == expected
    assert is_minor(roster, active, share) == (not could_be_full)


@given(peers, peers, peers, peers, peers)
def test_two_full_certificates_for_one_parent_share_a_voter(
    first: frozenset[PeerId],
    second: frozenset[PeerId],
    one: frozenset[PeerId],
    other: frozenset[PeerId],
    active: frozenset[PeerId],
) -> None:
    full = [
        enough_votes(voters, roster, active, 0.5) and not is_minor(roster, active, 0.5)
        for voters, roster in ((one, first), (other, second))
    ]
    assert not all(full) or one & other & active


@given(peers, peers, peers, shares)
def test_more_votes_are_never_fewer(
    voters: frozenset[PeerId], roster: frozenset[PeerId], active: frozenset[PeerId], share: float
) -> None:
    if enough_votes(voters, roster, active, share):
        assert enough_votes(voters | roster, roster, active, share)


def test_exactly_the_share_is_not_more() -> None:
    assert not more_than_share(2, 4, 0.5)
    assert more_than_share(3, 4, 0.5)
    assert more_than_share(1, 4, 0.0)


def test_a_certificate_of_all_is_accepted() -> None:
    chain = chain_of(core())
    assert chain.refusal(certificate(chain, PEERS[:5])) is None
    assert chain.refusal(certificate(chain, PEERS[:5], voters=PEERS[:4])) is None


def test_a_minor_certificate_is_accepted_after_the_first_version() -> None:
    chain = chain_of(core())
    chain.append(certificate(chain, PEERS[:5]))
    minor = certificate(chain, PEERS[:2])
    assert minor.outcome.minor
    assert chain.refusal(minor) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "next version"),
        ({"parent": bytes(32)}, "another parent"),
        ({"active_set": bytes(32)}, "another active set"),
        ({"trust": bytes(32)}, "another trust table"),
        ({"minor": True}, "wrong about being minor"),
        ({"roster": (*PEERS[:5], PEERS[0])}, "twice"),
        ({"contributors": (Contributor(peer=PEERS[9], tokens=1, steps=1),)}, "not in the roster"),
        ({"contributors": (Contributor(peer=PEERS[0], tokens=1, steps=1),) * 2}, "named twice"),
        ({"partitions": (PartitionOutcome(reducer=PEERS[0], root=bytes(32), included=(7,)),)}, "does not exist"),
        ({"partitions": (PartitionOutcome(reducer=PEERS[0], root=bytes(32), included=(0,)), None)}, "void"),
    ],
)
def test_an_outcome_that_does_not_follow_is_refused(changes: dict[str, object], reason: str) -> None:
    chain = chain_of(core())
    refusal = chain.refusal(certificate(chain, PEERS[:5], changes=changes))
    assert refusal is not None
    assert reason in refusal


def test_a_first_version_is_never_minor() -> None:
    chain = chain_of(core())
    assert chain.refusal(certificate(chain, PEERS[:2])) == "a first version is never minor"


def with_votes(given: Certificate, votes: tuple[Statement, ...]) -> Certificate:
    return Certificate(outcome=given.outcome, state=given.state, votes=votes)


def test_votes_that_do_not_count() -> None:
    chain = chain_of(core())
    good = certificate(chain, PEERS[:5])
    few = with_votes(good, good.votes[:3])
    assert chain.refusal(few) == "has too few votes"
    assert chain.refusal(with_votes(good, (*good.votes, good.votes[0]))) == "a voter signed twice"
    outside = certificate(chain, PEERS[:4], voters=PEERS[:5])
    assert chain.refusal(outside) == "has a vote from outside its roster"
    forged = good.votes[0].model_copy(update={"signature": bytes(32)})
    assert "does not count" in (chain.refusal(with_votes(good, (forged, *good.votes[1:]))) or "")
    other = certificate(chain, PEERS[:5], salt=b"other")
    assert "does not count" in (chain.refusal(with_votes(good, (other.votes[0], *good.votes[1:]))) or "")
    elsewhere = say(PEERS[0], "vote", chain, good.outcome.roster_id, good.outcome.contributors[0])
    assert "does not count" in (chain.refusal(with_votes(good, (elsewhere, *good.votes[1:]))) or "")


def test_the_digest_covers_outcome_and_state_but_no_signature() -> None:
    chain = chain_of(core())
    good = certificate(chain, PEERS[:5])
    assert with_votes(good, good.votes[:4]).digest == good.digest
    assert certificate(chain, PEERS[:5], salt=b"x").digest != good.digest
    assert Certificate(outcome=good.outcome, state=bytes(32), votes=good.votes).digest != good.digest


def test_work_that_is_in_no_partition_is_not_counted() -> None:
    chain = chain_of(core())
    partitions = (PartitionOutcome(reducer=PEERS[0], root=bytes(32), included=(0, 2)), None)
    outcome = certificate(chain, PEERS[:5], changes={"partitions": partitions}).outcome
    assert [one.peer for one in outcome.included()] == [PEERS[0], PEERS[2]]
    assert outcome.tokens == 200
    assert outcome.credited() == {PEERS[0]: 100, PEERS[2]: 100}
    assert outcome.included_in(PEERS[0]) == (True, False)
    assert outcome.included_in(PEERS[1]) == (False, False)
    assert outcome.included_in(PEERS[9]) == (False, False)


def test_credit_is_measured_by_the_peers_in_the_version() -> None:
    chain = chain_of(core())
    claims = (100, 300, 10**9, 10**9, 10**9)
    contributors = tuple(Contributor(peer=peer, tokens=one, steps=1) for peer, one in zip(PEERS, claims, strict=False))
    partitions = (PartitionOutcome(reducer=PEERS[0], root=bytes(32), included=(0, 1, 2)),)
    changes = {"contributors": contributors, "partitions": partitions}
    outcome = certificate(chain, PEERS[:5], changes=changes).outcome
    assert outcome.credited() == {PEERS[0]: 100, PEERS[1]: 300, PEERS[2]: 4800}
    assert outcome.tokens == 5200
