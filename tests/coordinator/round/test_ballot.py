"""Votes, abstentions, and when a group can make no certificate any more (design §6.2 step 9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import Outcome, Vote
from coordinator.chain.chain import Chain
from coordinator.group.group import Group
from coordinator.round.ballot import Ballot
from coordinator.wire.messages import Abstain
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement, digest_of
from tests.coordinator.rigs import (
    PEERS,
    certificate,
    chain_of,
    check,
    core,
    group_of,
    inputs_of,
    outcome_of,
    result_of,
    say,
)

FIVE = PEERS[:5]


def set_up(members: tuple[PeerId, ...] = FIVE) -> tuple[Chain, Group, Outcome]:
    chain = chain_of(core())
    group = group_of(chain, members)
    inputs = inputs_of(chain, group)
    results = dict(result_of(group, partition) for partition in range(group.partitions))
    checks = [check(chain, inputs, peer, list(results)) for peer in group.members]
    return chain, group, outcome_of(group, inputs, checks, results)


CHAIN, GROUP, OUTCOME = set_up()
STATES = (digest_of(b"state"), digest_of(b"another"))


def vote(voter: PeerId, state: int = 0, outcome: bytes = OUTCOME.digest) -> Statement:
    return say(voter, "vote", CHAIN, GROUP.key.roster_id, Vote(outcome=outcome, state=STATES[state]))


def abstention(voter: PeerId, attempt: int = 0) -> Statement:
    return say(voter, "abstain", CHAIN, GROUP.key.roster_id, Abstain(attempt=attempt))


def ballot() -> Ballot:
    counted = Ballot(GROUP)
    counted.know(OUTCOME)
    return counted


def test_enough_votes_make_a_certificate_that_fits_the_chain() -> None:
    counted = ballot()
    for voter in FIVE[:3]:
        counted.add_vote(vote(voter))
    assert counted.certificate() is None
    counted.add_vote(vote(FIVE[3]))
    found = counted.certificate()
    assert found is not None
    assert CHAIN.refusal(found) is None
    assert found.voters == frozenset(FIVE[:4])


def test_votes_come_before_the_outcome_that_they_name() -> None:
    counted = Ballot(GROUP)
    for voter in FIVE:
        counted.add_vote(vote(voter))
    assert counted.certificate() is None
    counted.know(OUTCOME)
    assert counted.certificate() is not None


def test_the_first_vote_counts() -> None:
    counted = ballot()
    counted.add_vote(vote(FIVE[0], state=1))
    for voter in FIVE[:4]:
        counted.add_vote(vote(voter, state=0))
    assert counted.certificate() is None
    assert counted.votes[FIVE[0]][0].state == STATES[1]


def test_ballots_of_others_are_refused() -> None:
    counted = ballot()
    body = vote(FIVE[0]).read(Vote)
    for statement, reason in (
        (vote(PEERS[8]), "another group"),
        (say(FIVE[0], "vote", CHAIN, bytes(32), body), "another group"),
        (say(FIVE[0], "vote", CHAIN, GROUP.key.roster_id, body, version=4), "another version"),
    ):
        with pytest.raises(PeerError, match=reason):
            counted.add_vote(statement)
    with pytest.raises(PeerError, match="another attempt"):
        counted.add_abstention(abstention(FIVE[0], attempt=3))
    assert not counted.votes
    assert not counted.abstained


def test_two_abstentions_of_five_end_it() -> None:
    counted = ballot()
    counted.add_abstention(abstention(FIVE[0]))
    assert not counted.hopeless()
    counted.add_abstention(abstention(FIVE[1]))
    assert counted.hopeless()


def test_two_proposals_that_share_the_votes_end_it() -> None:
    """No member abstained, all voted: else they would stay locked for three deadlines."""
    counted = ballot()
    for number, voter in enumerate(FIVE[:4]):
        counted.add_vote(vote(voter, state=number % 2))
    assert counted.hopeless()
    assert counted.certificate() is None


moves = st.lists(st.tuples(st.sampled_from(FIVE), st.sampled_from(["abstain", 0, 1])), max_size=10)


@given(moves, moves)
def test_a_hopeless_ballot_stays_so_among_honest_voters(
    first: list[tuple[PeerId, object]], more: list[tuple[PeerId, object]]
) -> None:
    """Honest voters vote only once, or abstain and then never vote."""
    counted, done, was_hopeless = ballot(), set[PeerId](), False
    for voter, move in [*first, *more]:
        if voter in done:
            continue
        done.add(voter)
        if isinstance(move, int):
            counted.add_vote(vote(voter, state=move))
        else:
            counted.add_abstention(abstention(voter))
        was_hopeless = was_hopeless or counted.hopeless()
        assert not (was_hopeless and counted.certificate())
        assert was_hopeless == counted.hopeless()


def test_a_vote_outweighs_an_abstention_of_the_same_key() -> None:
    """The key contradicts itself; that must not free voters whose votes may still make a certificate."""
    counted = ballot()
    for voter in FIVE[:3]:
        counted.add_vote(vote(voter))
        counted.add_abstention(abstention(voter))
    assert not counted.hopeless()


def test_the_active_share_can_make_a_group_hopeless() -> None:
    """Two thirds of the roster are not enough if they are too few of the active set."""
    chain = chain_of(core())
    chain.append(certificate(chain, FIVE))
    group = group_of(chain, (*FIVE[:3], *PEERS[5:9]))
    counted = Ballot(group)
    counted.add_abstention(say(FIVE[0], "abstain", chain, group.key.roster_id, Abstain(attempt=0)))
    assert counted.hopeless()
