"""Certificates (design §6.3): how many votes make a version, and every reason to refuse one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.certificate import (
    Certificate,
    Contributor,
    PartitionOutcome,
    Vote,
    active_set_digest,
    enough_votes,
    is_minor,
    more_than_share,
    refusal,
    votes_needed,
)
from coordinator.messages import Abstain
from dht.errors import PeerError
from tests.coordinator.builders import Club, digest, forged

CLUB = Club.of(6, founders=4)
CHAIN = CLUB.chain()
EVERYONE = (0, 1, 2, 3)

sets_of_peers = st.frozensets(st.sampled_from(CLUB.ids))
shares = st.sampled_from([0.0, 0.25, 0.5, 0.75])


def refused(certificate: Certificate) -> str | None:
    rules = CHAIN.rules
    return refusal(certificate, rules.run_id, CHAIN.digest, CHAIN.active_set(), rules.min_share, CLUB.verifier)


# -- thresholds


def test_votes_needed_are_more_than_two_thirds():
    assert [votes_needed(voters) for voters in range(1, 9)] == [1, 2, 3, 3, 4, 5, 5, 6]


@given(st.integers(1, 10_000))
def test_votes_needed_is_the_least_number_above_two_thirds(voters):
    needed = votes_needed(voters)
    assert 3 * needed > 2 * voters >= 3 * (needed - 1)
    assert 1 <= needed <= voters


@given(st.integers(1, 200))
def test_two_quorums_of_one_roster_share_more_than_a_third(voters):
    assert 3 * (2 * votes_needed(voters) - voters) > voters  # so at least one honest voter is in both


@pytest.mark.parametrize(
    ("present", "active", "share", "more"),
    [(2, 4, 0.5, False), (3, 4, 0.5, True), (2, 3, 0.5, True), (0, 4, 0.0, False), (1, 4, 0.0, True)],
)
def test_min_share_must_be_exceeded(present, active, share, more):
    assert more_than_share(present, active, share) is more


@given(sets_of_peers, sets_of_peers, shares)
def test_a_roster_is_minor_if_all_its_votes_could_not_exceed_the_share(roster, active, share):
    assert is_minor(roster, active, share) == (len(roster & active) <= share * len(active))


@given(sets_of_peers, sets_of_peers.filter(bool), sets_of_peers, shares)
def test_enough_votes_is_two_thirds_of_the_roster_and_the_share_of_the_active_set(voters, roster, active, share):
    two_thirds = 3 * len(voters & roster) > 2 * len(roster)
    share_reached = len(voters & roster & active) > share * len(active)
    assert enough_votes(voters, roster, active, share) == (
        two_thirds and (share_reached or is_minor(roster, active, share))
    )


@given(sets_of_peers, sets_of_peers.filter(bool), sets_of_peers, shares, st.sampled_from(CLUB.ids))
def test_another_vote_never_takes_a_certificate_away(voters, roster, active, share, more):
    if enough_votes(voters, roster, active, share):
        assert enough_votes(voters | {more}, roster, active, share)


def test_with_share_zero_one_active_voter_is_enough():
    one = frozenset(CLUB.ids[:1])
    assert not is_minor(one, frozenset(CLUB.ids), 0.0)
    assert enough_votes(one, one, frozenset(CLUB.ids), 0.0)


def test_the_digest_of_an_active_set_has_no_order():
    assert active_set_digest(CLUB.ids) == active_set_digest(CLUB.ids[::-1]) != active_set_digest(CLUB.ids[1:])


# -- what follows from an outcome


def test_a_member_counts_once_it_is_in_any_partition():
    contributors = tuple(Contributor(peer=CLUB.ids[n], tokens=10**n, steps=1) for n in EVERYONE)
    partitions = (
        PartitionOutcome(reducer=CLUB.ids[0], root=digest(0), included=(0, 1)),
        None,
        PartitionOutcome(reducer=CLUB.ids[1], root=digest(1), included=(1, 3)),
    )
    outcome = CLUB.outcome(CHAIN, EVERYONE, contributors=contributors, partitions=partitions)
    assert outcome.tokens == 1 + 10 + 1000
    assert [one.peer for one in outcome.included()] == [CLUB.ids[0], CLUB.ids[1], CLUB.ids[3]]
    assert outcome.included_in(CLUB.ids[1]) == (True, False, True)
    assert outcome.included_in(CLUB.ids[2]) == (False, False, False)
    assert outcome.included_in(CLUB.ids[5]) == (False, False, False)


def test_nobody_counts_where_every_partition_is_void():
    outcome = CLUB.outcome(CHAIN, EVERYONE, partitions=(None, None))
    assert (outcome.tokens, outcome.included()) == (0, ())


def test_the_name_of_a_version_does_not_cover_the_votes():
    three, four = CLUB.certify(CHAIN, EVERYONE, (0, 1, 2)), CLUB.certify(CHAIN, EVERYONE)
    assert three.digest == four.digest
    assert three.beacon() == four.beacon()


def test_the_name_of_a_version_covers_outcome_and_state():
    certificate = CLUB.certify(CHAIN, EVERYONE)
    other_state = certificate.model_copy(update={"state": digest("other")})
    names = {certificate.digest, Certificate.from_wire(other_state.to_wire()).digest}
    names |= {CLUB.certify(CHAIN, EVERYONE, attempt=1).digest, CLUB.certify(CHAIN, EVERYONE, coin=digest("c")).digest}
    assert len(names) == 4


# -- refusals: one thing is wrong at a time


@pytest.mark.parametrize("real_keys", [False, True], ids=["keyed hashes", "ed25519"])
@pytest.mark.parametrize("voters", [(0, 1, 2), (0, 1, 2, 3), (3, 1, 2)])
def test_a_valid_certificate_is_accepted(real_keys, voters):
    club = Club.of(4, real_keys=real_keys)
    assert club.chain().refusal(club.certify(club.chain(), EVERYONE, voters)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parent": digest("elsewhere")}, "names another parent"),
        ({"active_set": active_set_digest(CLUB.ids)}, "names another active set"),
        ({"trust": digest("table")}, "names another trust table"),
        ({"minor": True}, "is wrong about being minor"),
        (
            {"partitions": (PartitionOutcome(reducer=CLUB.ids[0], root=digest(0), included=(0, 4)),)},
            "a partition includes an input that does not exist",
        ),
        (
            {"contributors": (Contributor(peer=CLUB.ids[0], tokens=1, steps=1),) * 4},
            "a contributor is named twice or not in the roster",
        ),
        (
            {"contributors": tuple(Contributor(peer=CLUB.ids[n], tokens=1, steps=1) for n in (0, 1, 2, 4))},
            "a contributor is named twice or not in the roster",
        ),
    ],
)
def test_an_outcome_that_is_wrong_in_one_thing_is_refused(changes, reason):
    assert refused(CLUB.certify(CHAIN, EVERYONE, **changes)) == reason


def test_a_roster_that_names_a_peer_twice_is_refused():
    twice = CLUB.certify(CHAIN, (0, 1, 2, 3, 3), (0, 1, 2), contributors=CLUB.outcome(CHAIN, EVERYONE).contributors)
    assert refused(twice) == "roster names a peer twice"


def test_a_full_certificate_that_a_minority_could_only_make_minor_is_refused():
    assert refused(CLUB.certify(CHAIN, (0, 1), minor=False)) == "is wrong about being minor"


def test_a_first_version_is_never_minor():
    assert refused(CLUB.certify(CHAIN, (0, 1))) == "a first version is never minor"


def test_a_later_version_may_be_minor():
    chain = CLUB.grow(CLUB.chain(), EVERYONE)
    minor = CLUB.certify(chain, (0, 1))
    assert minor.outcome.minor
    assert chain.refusal(minor) is None


@pytest.mark.parametrize("voters", [(0, 1), (0, 1, 4, 5)], ids=["two of four", "two and strangers"])
def test_too_few_votes_are_refused(voters):
    assert refused(CLUB.certify(CHAIN, EVERYONE, voters)) == "has too few votes"


def test_two_thirds_of_a_roster_without_the_active_share_are_refused():
    club = Club.of(9, founders=4)
    roster = range(9)  # all four founders and five new peers
    assert club.chain().refusal(club.certify(club.chain(), roster, (0, 1, 4, 5, 6, 7, 8))) == "has too few votes"
    assert club.chain().refusal(club.certify(club.chain(), roster, (0, 1, 2, 4, 5, 6, 7))) is None


def test_a_voter_who_signed_twice_is_refused():
    certificate = CLUB.certify(CHAIN, EVERYONE)
    doubled = certificate.model_copy(update={"votes": (*certificate.votes, certificate.votes[0])})
    assert refused(Certificate.from_wire(doubled.to_wire())) == "a voter signed twice"


def votes_that_do_not_count():
    outcome = CLUB.outcome(CHAIN, EVERYONE)
    state, vote = digest(("state", outcome.digest)), CLUB.vote
    place = {"fragment": outcome.fragment, "version": 0, "group": outcome.roster_id}
    other = CLUB.outcome(CHAIN, EVERYONE, attempt=3)
    yield "another run", vote(3, outcome, state, run_id=digest("run"))
    yield "another group", vote(3, outcome, state, group=digest("group"))
    yield "another fragment", vote(3, outcome, state, fragment=1)
    yield "another version", vote(3, outcome, state, version=1)
    yield "another outcome", CLUB.vote(3, other, state, group=outcome.roster_id)
    yield "another state", vote(3, outcome, digest("other state"))
    yield "no vote at all", CLUB.say(3, "vote", Abstain(attempt=0), **place)
    yield "no signature", forged(vote(3, outcome, state))
    yield "somebody else's", vote(4, outcome, state).model_copy(update={"sender": CLUB.ids[3]})


BAD_VOTES = dict(votes_that_do_not_count())


@pytest.mark.parametrize("name", BAD_VOTES)
def test_one_bad_vote_spoils_a_certificate_even_if_the_others_would_do(name):
    good = CLUB.certify(CHAIN, EVERYONE, (0, 1, 2))
    spoilt = Certificate(outcome=good.outcome, state=good.state, votes=(*good.votes, BAD_VOTES[name]))
    assert refused(spoilt) == f"the vote of {CLUB.ids[3]} does not count"


def test_a_vote_signed_as_another_kind_does_not_count():
    good = CLUB.certify(CHAIN, EVERYONE, (0, 1, 2))
    place = {"fragment": 0, "version": 0, "group": good.outcome.roster_id}
    result = CLUB.say(3, "result", Vote(outcome=good.outcome.digest, state=good.state), **place)
    spoilt = Certificate(outcome=good.outcome, state=good.state, votes=(*good.votes, result))
    assert refused(spoilt) == f"the vote of {CLUB.ids[3]} does not count"


@given(st.binary(min_size=1, max_size=3), st.data())
def test_a_damaged_certificate_is_never_taken_for_another_version(noise, data):
    """Whatever is changed in the bytes: it does not decode, or is refused, or is the same version still."""
    wire = bytearray(CLUB.certify(CHAIN, EVERYONE, (0, 1, 2)).to_wire())
    at = data.draw(st.integers(0, len(wire) - len(noise)))
    wire[at : at + len(noise)] = noise
    try:
        certificate = Certificate.from_wire(bytes(wire))
    except PeerError:
        return
    assert refused(certificate) is not None or certificate.digest == CLUB.certify(CHAIN, EVERYONE).digest
