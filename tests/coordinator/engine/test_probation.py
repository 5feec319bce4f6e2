"""Probation follows from the newest certificates alone (design §9, docs/adr/0017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import PartitionOutcome
from coordinator.chain.chain import ABSENCES, ACTIVE_CERTIFICATES, CHAIN_KEPT, Chain
from coordinator.chain.lineage import CHAIN_PAGE_MAX
from coordinator.chain.waypoint import chain_of_tail, tail
from coordinator.group.group import read_commit, read_input_set
from coordinator.group.roster_building import limits_at
from coordinator.round.ballot import Ballot
from coordinator.round.outcome import build_outcome
from coordinator.run.manifest import PROBATION_ROUNDS_MAX, RunConfig, TrustSpec
from coordinator.wire.messages import Abstain, Result
from dht.errors import PeerError, UsageError
from tests.coordinator.builders import CODEC, Club, digest

ROUNDS = 3
TRUST = TrustSpec(newcomers_share=0.25, probation_rounds=ROUNDS)
CLUB = Club.of(8, founders=4, trust=TRUST)
FOUNDERS, ALL = (0, 1, 2, 3), (0, 1, 2, 3, 4)
NEW = CLUB.ids[4]


def chain(*rosters: Sequence[int]) -> Chain:
    return CLUB.grow(CLUB.chain(), *rosters)


def is_new(grown: Chain) -> bool:
    return NEW in grown.on_probation({NEW, CLUB.ids[0]})


# -- who is on probation


def test_a_key_is_on_probation_until_its_work_is_in_enough_certificates() -> None:
    grown = chain()
    for count in range(ROUNDS):
        assert is_new(grown), count
        assert NEW not in grown.active_set()
        CLUB.grow(grown, ALL)
    assert not is_new(grown)
    assert grown.active_set() == CLUB.peers(ALL)


def test_founders_never_are() -> None:
    away = chain(*[(0, 1, 2)] * 12)
    assert not away.on_probation(CLUB.peers(FOUNDERS))


def test_taking_part_without_work_does_not_count() -> None:
    grown = chain(FOUNDERS)
    for _ in range(ROUNDS):
        others = PartitionOutcome(reducer=CLUB.ids[0], root=digest("root"), included=(0, 1, 2, 3))
        grown.append(CLUB.certify(grown, ALL, partitions=(others,)))
    assert is_new(grown)


def test_a_key_that_was_away_for_long_begins_again() -> None:
    known = chain(*[ALL] * 12)
    back = ROUNDS + ABSENCES
    assert not is_new(CLUB.grow(known, *[FOUNDERS] * back))
    assert is_new(CLUB.grow(known, FOUNDERS))


def test_where_nobody_is_left_who_counts_the_newest_do() -> None:
    """No accepted certificate has such a roster, but no rule may rest on an empty active set."""
    newcomers = chain()
    for _ in range(2):
        newcomers.append(CLUB.certify(newcomers, (4, 5, 6)))
    assert newcomers.active_set() == CLUB.peers((4, 5, 6))
    assert newcomers.on_probation(CLUB.peers((4, 7))) == CLUB.peers((7,))


def test_fresh_keys_alone_certify_no_version() -> None:
    grown = chain(FOUNDERS, FOUNDERS)
    for roster in ((4, 5, 6, 7), (4,), (0, 4, 5)):
        assert grown.refusal(CLUB.certify(grown, roster)) == "has too many newcomers"
    assert grown.refusal(CLUB.certify(grown, (0, 1, 2, 4))) is None
    assert Club.of(8, founders=4).chain().refusal(CLUB.certify(grown, (4, 5))) != "has too many newcomers"


def test_without_probation_nobody_is() -> None:
    free = Club.of(8, founders=4)
    assert not free.chain().on_probation(frozenset(free.ids))
    assert free.rules.memory == ACTIVE_CERTIFICATES


@given(st.lists(st.sets(st.integers(4, 7)), min_size=1, max_size=24), st.integers(1, ROUNDS))
def test_the_newest_certificates_decide(guests: list[set[int]], rounds: int) -> None:
    """So a peer that begins at a waypoint, or has forgotten old versions, agrees with peers that know all."""
    rules = replace(CLUB.rules, trust=TRUST.model_copy(update={"probation_rounds": rounds}))
    whole = Chain(rules, 0, CLUB.manifest.genesis[0])
    for own in guests:
        whole.append(CLUB.certify(whole, (*FOUNDERS, *sorted(own))))
    version = whole.version
    kept = tail(whole, version)
    assert len(kept) == min(version, rules.memory)
    short = chain_of_tail(Chain(rules, 0, whole.genesis), version, whole.digest, kept)
    everybody = frozenset(CLUB.ids)
    assert short.on_probation(everybody) == whole.on_probation(everybody)
    assert (short.active_set(), short.leaders()) == (whole.active_set(), whole.leaders())


def test_the_versions_that_decide_fit_into_one_message() -> None:
    longest = replace(CLUB.rules, trust=TRUST.model_copy(update={"probation_rounds": PROBATION_ROUNDS_MAX}))
    assert longest.memory <= CHAIN_PAGE_MAX <= CHAIN_KEPT


# -- what follows


def test_it_reduces_nothing_and_leads_nothing() -> None:
    group = CLUB.group(CLUB.chain(), ALL)
    assert group.probation == {NEW}
    assert NEW in group.members
    assert NEW in group.contributors
    assert NEW not in group.reducers
    assert NEW not in group.active


def test_its_work_has_no_weight_and_is_not_credited() -> None:
    base = CLUB.chain()
    group = CLUB.group(base, ALL)
    commits = [CLUB.commit(number, group, probation=number == 4) for number in ALL]
    inputs = read_input_set(CLUB.bundle(group, commits), group, CODEC, base)
    new = inputs.index(NEW)
    assert new is not None
    weights = [one.weight for one in inputs.whole()]
    assert weights[new] == 0.0
    assert len({weight for member, weight in enumerate(weights) if member != new}) == 1
    assert inputs.partition(0, range(5))[new].weight == 0.0
    results = [CLUB.result(group, inputs, partition) for partition in range(group.partitions)]
    digests = tuple(one.digest for one in results)
    checks = [CLUB.check(number, group, inputs, digests) for number in FOUNDERS]
    held = {one.digest: (group.reducer(p), one.read(Result)) for p, one in enumerate(results)}
    outcome = build_outcome(group, inputs, checks, digests, held)
    assert {one.peer: one.tokens for one in outcome.included()}[NEW] == 0
    assert outcome.tokens == 400


def test_it_does_not_vote() -> None:
    """So a silent hostile founder of four and a silent key on probation are not two of five voters."""
    group = CLUB.group(CLUB.chain(), ALL)
    assert group.voters == CLUB.peers(FOUNDERS)
    assert not group.certifies(CLUB.peers((0, 1, 4)))
    assert group.certifies(CLUB.peers((0, 1, 2)))
    assert NEW not in group.proposers()


def test_its_check_and_vote_are_not_counted() -> None:
    base = CLUB.chain()
    group = CLUB.group(base, ALL)
    inputs = read_input_set(CLUB.bundle(group, [CLUB.commit(one, group) for one in FOUNDERS]), group, CODEC, base)
    with pytest.raises(PeerError, match="no check of this group"):
        CLUB.check(4, group, inputs, (digest("result"),) * group.partitions)
    ballot, outcome = Ballot(group), CLUB.outcome(base, ALL, roster_id=group.key.roster_id)
    with pytest.raises(PeerError, match="of another group"):
        ballot.add_vote(CLUB.vote(4, outcome, digest("state")))
    ballot.add_abstention(CLUB.say(4, "abstain", Abstain(attempt=0), **CLUB.in_group(group)))
    assert not ballot.hopeless()


@pytest.mark.parametrize(("voters", "refused"), [((0, 1, 2), None), ((0, 1, 4), "has too few votes")])
def test_a_certificate_needs_two_thirds_of_those_who_vote(voters: tuple[int, ...], refused: str | None) -> None:
    """The chain before it determines the voters."""
    assert CLUB.chain().refusal(CLUB.certify(CLUB.chain(), ALL, voters)) == refused


@pytest.mark.parametrize(("voters", "problem"), [((0, 1, 2), None), ((0, 1), "has too few votes")])
def test_without_the_chain_as_many_may_be_on_probation_as_are_bounded(
    voters: tuple[int, ...], problem: str | None
) -> None:
    certificate = CLUB.certify(CLUB.chain(), ALL, voters)
    assert CLUB.rules.refusal(certificate) == problem
    assert replace(CLUB.rules, trust=TrustSpec()).refusal(certificate) == "has too few votes"


@pytest.mark.parametrize(("number", "says"), [(4, False), (0, True)])
def test_a_commitment_that_lies_about_it_is_refused(number: int, says: bool) -> None:
    group = CLUB.group(CLUB.chain(), ALL)
    with pytest.raises(PeerError, match="wrong about being on probation"):
        read_commit(CLUB.commit(number, group, probation=says), group, CODEC, CLUB.rules)


def test_keys_on_probation_are_newcomers_to_every_group() -> None:
    """Even keys that were in the last group count as newcomers, so they are never more than a quarter."""
    grown = chain((*FOUNDERS, 4), (*FOUNDERS, 5))
    limits = limits_at(CLUB.core(0), grown, 0, dict.fromkeys(CLUB.ids, frozenset[bytes]()))
    assert len(limits.admitted(CLUB.ids)) == 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[trust]\nprobation_rounds = 3", "newcomers_share of 0.25 at most"),
        ("[trust]\nprobation_rounds = 15\nnewcomers_share = 0.25", "at most 14"),
    ],
)
def test_a_run_file_that_cannot_be_kept_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        RunConfig.parse(text, "run.toml")
