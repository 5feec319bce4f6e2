"""Comparing lineages after a partition (design §8): two honest peers always choose the same winner."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.chain import Chain
from coordinator.lineage import (
    Branch,
    Claim,
    ancestor,
    better,
    claim,
    continuation,
    known_digests,
    majority_signed,
)
from coordinator.messages import LINEAGE_DEPTH_MAX
from coordinator.weights import TRUNCATION
from dht.statement import digest_of
from tests.coordinator.builders import Club, digest

CLUB = Club.of(6)
EVERYONE = tuple(range(6))

claims = st.builds(
    Claim,
    signers=st.integers(0, 3),
    tokens=st.sampled_from([0.0, 1.0, 2.5]),
    inverse_digest=st.binary(min_size=1, max_size=2),
)


def stem(fragment: int = 0) -> Chain:
    """What both sides have."""
    return CLUB.grow(CLUB.chain(fragment), EVERYONE)


def side(fragment: int, *rosters: tuple[int, ...], salt: str = "") -> Chain:
    """One side's chain after the fork; another `salt` gives other versions of the same strength."""
    chain = stem(fragment)
    for roster in rosters:
        chain.append(CLUB.certify(chain, roster, coin=digest(salt)))
    return chain


def strength(*chains: Chain) -> Claim:
    return claim([Branch(stem(chain.fragment).active_set(), chain.after(1, 99)) for chain in chains])


# -- claims


@given(claims, claims, claims)
def test_claims_are_totally_ordered(one, two, three):
    assert (one < two) + (two < one) + (one == two) == 1
    assert not (one < two < three) or one < three
    assert (one.signers, one.tokens) <= (two.signers, two.tokens) or one > two


def test_more_signers_win_whatever_the_tokens():
    few, many = side(0, (0, 1), (0, 1), (0, 1)), side(0, (2, 3, 4))
    assert strength(many) > strength(few)
    assert strength(few).tokens > strength(many).tokens


def test_signers_are_counted_once_and_only_if_they_were_active_at_the_fork():
    chain = CLUB.grow(CLUB.chain(), (0, 1, 2, 3))
    CLUB.grow(chain, (0, 1, 2, 4), (0, 1, 2, 5))
    active = chain.truncated(1).active_set()
    assert active == CLUB.peers((0, 1, 2, 3))
    assert claim([Branch(active, chain.after(1, 9))]).signers == 3


def test_signers_are_distinct_over_all_fragments():
    assert strength(side(0, (0, 1, 2)), side(1, (2, 3))).signers == 4


def test_of_equal_signers_the_more_tokens_win():
    short, long = side(0, (0, 1, 2)), side(0, (3, 4, 5), (3, 4, 5))
    assert strength(long) > strength(short)


def test_no_claim_of_one_peer_outweighs_the_rest():
    honest, boast = (100, 100, 100), (100, 100, 10**12)
    versions = []
    for tokens in (honest, boast):
        chain = stem()
        outcome = CLUB.outcome(chain, (0, 1, 2))
        contributors = tuple(
            one.model_copy(update={"tokens": count}) for one, count in zip(outcome.contributors, tokens, strict=True)
        )
        versions.append(Branch(chain.active_set(), (CLUB.certify(chain, (0, 1, 2), contributors=contributors),)))
    assert claim(versions[1:]).tokens == 100 + 100 + TRUNCATION * 100
    assert claim(versions[:1]).tokens == 300


def test_of_equal_strength_the_lower_digest_wins():
    one, other = side(0, (0, 1, 2), salt="one"), side(0, (3, 4, 5), salt="other")
    assert strength(one).signers == strength(other).signers
    assert strength(one).tokens == strength(other).tokens
    lower = min(one, other, key=lambda chain: digest_of(chain.digest))
    higher = one if lower is other else other
    assert strength(lower) > strength(higher)


# -- choosing


rosters = st.sets(st.sampled_from(EVERYONE), min_size=1).map(lambda members: tuple(sorted(members)))
histories = st.lists(rosters, min_size=1, max_size=3)


@settings(max_examples=40)
@given(st.lists(st.tuples(histories, histories), min_size=1, max_size=2))
def test_both_sides_choose_the_same_winner(fragments):
    left = {index: side(index, *one, salt="left") for index, (one, _) in enumerate(fragments)}
    right = {index: side(index, *other, salt="right") for index, (_, other) in enumerate(fragments)}
    right_wins = better(left, {index: (1, chain) for index, chain in right.items()})
    left_wins = better(right, {index: (1, chain) for index, chain in left.items()})
    assert left_wins != right_wins


@settings(max_examples=30)
@given(st.tuples(histories, histories, histories))
def test_of_three_lineages_one_wins_over_both_others(three):
    chains = [side(0, *history, salt=str(number)) for number, history in enumerate(three)]
    wins = [all(better({0: other}, {0: (1, chain)}) for other in chains if other is not chain) for chain in chains]
    assert wins.count(True) == 1


def test_nobody_is_better_than_itself():
    chain = side(0, (0, 1, 2))
    assert not better({0: chain}, {0: (1, side(0, (0, 1, 2)))})


def test_the_side_with_most_of_the_forks_active_set_wins():
    """Under design §8 that is the larger side of a partition, which went on with full certificates."""
    larger, smaller = side(0, (0, 1, 2, 3)), side(0, (4, 5), (4, 5))
    assert majority_signed(larger, 1)
    assert not majority_signed(smaller, 1)
    assert better({0: smaller}, {0: (1, larger)})
    assert not better({0: larger}, {0: (1, smaller)})


# -- finding the fork


def test_known_digests_are_the_newest_first_and_bounded():
    chain = CLUB.grow(CLUB.chain(), *[EVERYONE] * 3)
    assert known_digests(chain) == tuple(chain.digest_at(version) for version in (3, 2, 1, 0))
    CLUB.grow(chain, *[(0,)] * LINEAGE_DEPTH_MAX)
    assert len(known_digests(chain)) == LINEAGE_DEPTH_MAX + 1
    assert known_digests(chain)[0] == chain.digest


def test_the_ancestor_is_the_newest_version_of_both():
    ours, theirs = side(0, (0, 1, 2), (0, 1, 2)), side(0, (3, 4, 5))
    assert ancestor(ours, known_digests(theirs)) == 1
    assert ancestor(ours, known_digests(ours)) == ours.version
    assert ancestor(ours, (digest("nothing"),)) is None
    assert ancestor(ours, ()) is None


def test_a_continuation_is_verified_and_says_where_it_parts():
    ours, theirs = side(0, (0, 1, 2, 3)), side(0, (3, 4, 5), (3, 4, 5))
    found = continuation(ours, theirs.after(1, 9))
    assert found is not None
    assert (found[0], found[1].digest) == (1, theirs.digest)
    assert ours.version == 2  # untouched


def test_what_follows_ours_continues_at_our_version():
    ours, longer = side(0, (0, 1, 2)), side(0, (0, 1, 2), (0, 1, 2))
    found = continuation(ours, longer.after(0, 9))  # with versions that we know already
    assert found is not None
    assert found[0] == ours.version == 2


def test_a_continuation_says_nothing_if_it_is_known_or_false_or_does_not_fit():
    ours, theirs = side(0, (0, 1, 2)), side(0, (3, 4, 5), (3, 4, 5))
    first, second = theirs.after(1, 9)
    unsigned = first.model_copy(update={"votes": first.votes[:1]})
    assert continuation(ours, ours.after(0, 9)) is None
    assert continuation(ours, ()) is None
    assert continuation(ours, (second,)) is None
    assert continuation(ours, (type(first).from_wire(unsigned.to_wire()), second)) is None
    assert continuation(stem(1), (first, second)) is None


def test_a_fork_deeper_than_lineages_merge_says_nothing():
    chain = CLUB.grow(CLUB.chain(), EVERYONE)
    rival = CLUB.certify(chain, (3, 4, 5))
    CLUB.grow(chain, *[(0,)] * LINEAGE_DEPTH_MAX)
    assert continuation(chain, (rival,)) is not None
    CLUB.grow(chain, (0,))
    assert continuation(chain, (rival,)) is None
