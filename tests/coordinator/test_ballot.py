"""Votes, abstentions and what they add up to (design §6.2 step 9, §6.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.ballot import Ballot
from coordinator.messages import Abstain
from dht.errors import PeerError
from tests.coordinator.builders import Club, digest, forged

CLUB = Club.of(6, founders=4)
CHAIN = CLUB.grow(CLUB.chain(), (0, 1, 2, 3))
EVERYONE = (0, 1, 2, 3)
GROUP = CLUB.group(CHAIN, EVERYONE)
OUTCOME = CLUB.outcome(CHAIN, EVERYONE, roster_id=GROUP.key.roster_id)
OTHER = CLUB.outcome(CHAIN, EVERYONE, roster_id=GROUP.key.roster_id, coin=digest("other"))
STATE = digest("state")


def ballot(*outcomes):
    made = Ballot(GROUP, CLUB.verifier)
    for outcome in outcomes or (OUTCOME,):
        made.know(outcome)
    return made


def abstention(number, group=GROUP, attempt=0):
    return CLUB.say(number, "abstain", Abstain(attempt=attempt), **CLUB.in_group(group))


def test_three_of_four_votes_make_the_certificate():
    counted = ballot()
    for number in (2, 0):
        counted.add_vote(CLUB.vote(number, OUTCOME, STATE))
        assert counted.certificate() is None
    counted.add_vote(CLUB.vote(1, OUTCOME, STATE))
    certificate = counted.certificate()
    assert certificate is not None
    assert (certificate.outcome, certificate.state) == (OUTCOME, STATE)
    assert certificate.voters == CLUB.peers((0, 1, 2))
    assert CHAIN.refusal(certificate) is None  # what a ballot makes, every chain takes


def test_a_voter_counts_once():
    counted = ballot()
    for _ in range(3):
        counted.add_vote(CLUB.vote(0, OUTCOME, STATE))
    assert len(counted.votes) == 1


def test_of_contradictory_votes_the_first_counts():
    counted = ballot(OUTCOME, OTHER)
    counted.add_vote(CLUB.vote(0, OUTCOME, STATE))
    counted.add_vote(CLUB.vote(0, OTHER, STATE))
    for number in (1, 2):
        counted.add_vote(CLUB.vote(number, OTHER, STATE))
    assert counted.certificate() is None
    counted.add_vote(CLUB.vote(3, OTHER, STATE))
    assert counted.certificate().voters == CLUB.peers((1, 2, 3))


def test_votes_for_another_state_do_not_add_up():
    counted = ballot()
    for number in (0, 1):
        counted.add_vote(CLUB.vote(number, OUTCOME, STATE))
    counted.add_vote(CLUB.vote(2, OUTCOME, digest("another state")))
    assert counted.certificate() is None


def test_an_outcome_must_be_known_to_be_certified():
    counted = ballot(OTHER)
    for number in EVERYONE:
        counted.add_vote(CLUB.vote(number, OUTCOME, STATE))
    assert counted.certificate() is None
    counted.know(OUTCOME)
    assert counted.certificate() is not None


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (CLUB.vote(5, OUTCOME, STATE), "a ballot of another group"),
        (CLUB.vote(1, OUTCOME, STATE, group=digest("x")), "a ballot of another group"),
        (CLUB.vote(1, OUTCOME, STATE, version=0), "a ballot for another version"),
        (CLUB.vote(1, OUTCOME, STATE, fragment=1), "a ballot for another version"),
        (forged(CLUB.vote(1, OUTCOME, STATE)), "a vote that its sender did not sign"),
        (abstention(1), "Vote"),
    ],
)
def test_a_vote_that_does_not_belong_is_refused(statement, reason):
    counted = ballot()
    with pytest.raises(PeerError, match=reason):
        counted.add_vote(statement)
    assert not counted.votes


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (abstention(5), "a ballot of another group"),
        (abstention(1, CLUB.group(CHAIN, (0, 1, 2))), "a ballot of another group"),
        (abstention(1, attempt=1), "an abstention from another attempt"),
        (forged(abstention(1)), "an abstention that its sender did not sign"),
        (CLUB.vote(1, OUTCOME, STATE), "Abstain"),
    ],
)
def test_an_abstention_that_does_not_belong_is_refused(statement, reason):
    counted = ballot()
    with pytest.raises(PeerError, match=reason):
        counted.add_abstention(statement)
    assert not counted.abstained


def test_a_forged_vote_does_not_keep_the_real_one_out():
    counted = ballot()
    with pytest.raises(PeerError):
        counted.add_vote(forged(CLUB.vote(0, OTHER, STATE)))
    counted.add_vote(CLUB.vote(0, OUTCOME, STATE))
    assert counted.votes[CLUB.ids[0]][0].outcome == OUTCOME.digest


# -- hope


def test_two_of_four_abstentions_leave_no_hope():
    counted = ballot()
    counted.add_abstention(abstention(0))
    assert not counted.hopeless()
    counted.add_abstention(abstention(1))
    assert counted.hopeless()


def test_votes_for_two_states_leave_no_hope():
    counted = ballot()
    for number in EVERYONE[:2]:
        counted.add_vote(CLUB.vote(number, OUTCOME, STATE))
    counted.add_vote(CLUB.vote(2, OUTCOME, digest("another")))
    assert not counted.hopeless()  # the fourth may still join the first two
    counted.add_vote(CLUB.vote(3, OUTCOME, digest("another")))
    assert counted.hopeless()


def test_a_voter_that_abstains_too_is_counted_as_a_voter():
    """Its key is convicted by the two statements; whether a certificate exists does not depend on that."""
    counted = ballot()
    for number in (0, 1, 2):
        counted.add_vote(CLUB.vote(number, OUTCOME, STATE))
        counted.add_abstention(abstention(number))
    assert counted.certificate() is not None
    assert not counted.hopeless()


def test_a_full_group_needs_its_share_of_the_active_set_to_hope():
    club = Club.of(9, founders=4)
    chain = club.chain()
    group = club.group(chain, range(9))
    counted = Ballot(group, club.verifier)
    for number in (0, 1):  # half of the founders; seven of nine voters are left, enough of the roster
        counted.add_abstention(club.say(number, "abstain", Abstain(attempt=0), **club.in_group(group)))
    assert counted.hopeless()


ballots = st.dictionaries(
    st.sampled_from(EVERYONE), st.tuples(st.sampled_from(["one", "two", None]), st.booleans()), max_size=4
)


@given(ballots, st.permutations(EVERYONE))
def test_a_ballot_is_a_count_that_ignores_order(said, order):
    """Certified, hopeless or open: against a count by hand, votes before abstentions, in any order."""
    counted = ballot()
    for number in order:
        state, abstains = said.get(number, (None, False))
        if state is not None:
            counted.add_vote(CLUB.vote(number, OUTCOME, digest(state)))
        if abstains:
            counted.add_abstention(abstention(number))
    camps = [{n for n, (state, _) in said.items() if state == name} for name in ("one", "two")]
    open_voters = [n for n in EVERYONE if n not in said or said[n] == (None, False)]
    assert (counted.certificate() is not None) == any(len(camp) >= 3 for camp in camps)
    assert counted.hopeless() == all(len(camp) + len(open_voters) < 3 for camp in camps)
    assert not (counted.hopeless() and counted.certificate() is not None)
