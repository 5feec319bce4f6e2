"""Comparison of lineages (design §8): two honest peers with the same copies agree on the winner."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.chain import UNSETTLED_VERSIONS, Chain
from coordinator.chain.lineage import (
    CHAIN_PAGE_MAX,
    LINEAGE_DEPTH_MAX,
    VERSIONS_CLAIMED,
    Branch,
    ancestor,
    claim,
    continuation,
    extended_chain,
    fragments_won,
    known_digests,
    majority_signed,
    without_tail,
)
from dht.identity import PeerId
from tests.coordinator.rigs import PACE, PEERS, certificate, chain_of, core, grown

FIVE = PEERS[:5]


def stem(versions: int = 2) -> Chain:
    return grown(chain_of(core()), versions, FIVE)


def branch(base: Chain, versions: int, roster: tuple[PeerId, ...], salt: bytes, tokens: int = 100) -> Chain:
    return grown(base, versions, roster, salt, tokens)


rosters = st.sampled_from([FIVE, FIVE[:3], FIVE[2:], FIVE[:2], FIVE[3:], FIVE[:1]])
branches = st.tuples(st.integers(1, 4), rosters, st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([0, 100, 700]))


@given(branches, branches)
def test_of_two_lineages_exactly_one_wins(
    one: tuple[int, tuple[PeerId, ...], bytes, int], other: tuple[int, tuple[PeerId, ...], bytes, int]
) -> None:
    base = stem()
    first, second = branch(base, *one), branch(base, *other)
    wins = fragments_won({0: first}, {0: (2, second)})
    loses = fragments_won({0: second}, {0: (2, first)})
    assert len(wins | loses) == len(wins) + len(loses) == (first.digest != second.digest)


def stems_of_two() -> list[Chain]:
    """Make chains of two fragments, with three keys active in both and two in each alone."""
    own = core(founders=PEERS[:7], pace=PACE.model_copy(update={"fragments": 2}))
    return [grown(chain_of(own, index), 4, PEERS[2 * index : 2 * index + 5]) for index in range(2)]


STEMS = stems_of_two()
Pieces = list[tuple[int, tuple[PeerId, ...]]]


def pieces(versions: list[int], peers: tuple[PeerId, ...]) -> st.SearchStrategy[Pieces]:
    """Draw the growth of a fragment: versions by one roster, and then perhaps by another."""
    rosters = st.lists(st.sampled_from(peers), min_size=1, max_size=5, unique=True).map(tuple)
    return st.lists(st.tuples(st.sampled_from(versions), rosters), min_size=1, max_size=2)


def lineage(grows: tuple[Pieces, ...], salt: bytes) -> dict[int, Chain]:
    found = dict(enumerate(STEMS))
    for index, pieces in enumerate(grows):
        for versions, roster in pieces:
            found[index] = branch(found[index], versions, roster, salt)
    return found


def seen(theirs: dict[int, Chain]) -> dict[int, tuple[int, Chain]]:
    """Return the forks as peers know them that have heard the branch to its end."""
    return {index: (4, chain) for index, chain in theirs.items()}


def heard(ours: Chain, theirs: Chain) -> tuple[int, Chain] | None:
    """Return the fork as a peer knows it that asks for all of it; None if it lies too deep, or there is none."""
    shared = ancestor(theirs, known_digests(ours))
    found = None if shared is None else continuation(ours, theirs.after(shared, CHAIN_PAGE_MAX))
    if found is None:
        return None
    longer = extended_chain(found[1], theirs.after(found[1].version, UNSETTLED_VERSIONS))
    assert longer is not None
    return found[0], longer


def left_over(first: dict[int, Chain], second: dict[int, Chain], banned: tuple[PeerId, ...]) -> set[int]:
    """Return the fragments that still differ after each side has looked at the other twice."""
    for _ in range(2):
        for ours, theirs in (first, second), (second, first):
            forks = {index: heard(ours[index], chain) for index, chain in theirs.items()}
            known = {index: fork for index, fork in forks.items() if fork is not None}
            ours.update((index, theirs[index]) for index in fragments_won(ours, known, banned))
    return {index for index, chain in first.items() if chain.digest != second[index].digest}


ANY = pieces([1, 2, 30], PEERS[:7])
BANNED = st.sampled_from([(), PEERS[2:3], PEERS[3:5]])


@given(st.tuples(ANY, ANY), st.tuples(ANY, ANY), BANNED)
def test_each_fragment_goes_to_exactly_one_of_two_lineages(
    one: tuple[Pieces, ...], other: tuple[Pieces, ...], banned: tuple[PeerId, ...]
) -> None:
    """This holds although each fragment has other active keys, and some sign on both sides."""
    first, second = lineage(one, b"one"), lineage(other, b"other")
    wins, loses = fragments_won(first, seen(second), banned), fragments_won(second, seen(first), banned)
    assert sorted([*wins, *loses]) == [0, 1]
    assert not left_over(first, second, banned)


@given(st.tuples(ANY, ANY), st.tuples(ANY, ANY))
def test_shown_branches_do_not_keep_a_peer_changing_over(one: tuple[Pieces, ...], other: tuple[Pieces, ...]) -> None:
    """It is shown two lineages again and again: one fragment, the other, or both."""
    own, both = lineage(one, b"one"), [lineage(one, b"one"), lineage(other, b"other")]
    for _ in range(4):
        before = {index: chain.digest for index, chain in own.items()}
        for shown in both:
            for indexes in (0,), (1,), (0, 1):
                forks = {index: shown[index] for index in indexes if shown[index].digest != own[index].digest}
                own.update((index, shown[index]) for index in fragments_won(own, seen(forks)))
        if before == {index: chain.digest for index, chain in own.items()}:
            return
    pytest.fail("it still changes over")


def side(peers: tuple[PeerId, ...]) -> st.SearchStrategy[Pieces]:
    """Draw a fragment's growth on one side of a network partition, to which others may come later."""
    few = st.integers(1, len(peers) - 1).flatmap(lambda first: st.sampled_from([peers[:first], peers[-first:]]))
    lengths = st.tuples(st.sampled_from([1, 2, 40, 70]), st.sampled_from([0, 1, 40]))
    return st.tuples(lengths, few).map(lambda drawn: [(drawn[0][0], drawn[1]), (drawn[0][1], peers)])


LEFT, RIGHT = side(PEERS[:3]), side(PEERS[3:7])


@given(st.tuples(LEFT, LEFT), st.tuples(RIGHT, RIGHT))
def test_two_honest_sides_never_refuse_each_other_for_good(one: tuple[Pieces, ...], other: tuple[Pieces, ...]) -> None:
    assert not left_over(lineage(one, b"one"), lineage(other, b"other"), ())


def test_a_branch_that_most_signed_after_long_stays() -> None:
    """Four of ten were cut off for long, then went on with three that were not; three more are hostile."""
    ten = PEERS[:10]
    base = grown(chain_of(core(founders=ten)), 2, ten)
    gone_on = branch(branch(base, 40, ten[:3], b"three"), 20, ten[:7], b"seven")
    made = branch(base, 33, ten[7:], b"hostile", 10**9)
    assert not fragments_won({0: gone_on}, {0: (2, made)})
    assert fragments_won({0: made}, {0: (2, gone_on)})


def test_a_peer_led_to_a_great_height_for_a_moment_does_not_count_there() -> None:
    """Two of seven made 300 versions at once; three more signed there one after another, and went back."""
    seven = PEERS[:7]
    base = grown(chain_of(core(founders=seven)), 2, seven)
    high = branch(base, 300, seven[:2], b"high", 10**9)
    for led_away in seven[2:5]:
        high = branch(high, 1, (*seven[:2], led_away), b"high")
    ours = branch(base, 40, seven[2:], b"ours")
    assert not fragments_won({0: ours}, {0: (2, high)})
    assert fragments_won({0: high}, {0: (2, ours)})


@given(st.tuples(branches, branches, branches))
def test_the_order_is_transitive(three: tuple[tuple[int, tuple[PeerId, ...], bytes, int], ...]) -> None:
    base = stem()
    chains = [branch(base, *one) for one in three]
    for first, second, third in permutations(chains):
        if fragments_won({0: first}, {0: (2, second)}) and fragments_won({0: second}, {0: (2, third)}):
            assert fragments_won({0: first}, {0: (2, third)})


def test_signers_come_before_tokens() -> None:
    base = stem()
    few, many = branch(base, 3, FIVE[:2], b"few", 10**9), branch(base, 1, FIVE[2:], b"many", 1)
    assert fragments_won({0: few}, {0: (2, many)})


def test_signers_count_once_and_only_if_they_were_active_at_the_fork() -> None:
    base = stem()
    strangers = (*FIVE[:2], *PEERS[5:11])
    with_strangers = claim([Branch(base.active_set(), branch(base, 3, strangers, b"x").after(2, 9))])
    without = claim([Branch(base.active_set(), branch(base, 1, FIVE[:2], b"y").after(2, 9))])
    assert with_strangers.signers == without.signers == 2


def test_the_branch_that_most_signed_later_wins_however_many_signed_the_other_before() -> None:
    """Four of five voted for a certificate that was withheld from them, and went on after their locks ran out."""
    base = stem()
    withheld, gone_on = branch(base, 1, FIVE, b"withheld", 10**9), branch(base, 2, FIVE[:3], b"on")
    assert not fragments_won({0: gone_on}, {0: (2, withheld)})
    assert fragments_won({0: withheld}, {0: (2, gone_on)})
    tail = branch(withheld, 5, FIVE[3:], b"of two")
    assert not fragments_won({0: gone_on}, {0: (2, tail)}), "nobody else is in what those two make"
    few = branch(base, 2, FIVE[:2], b"few")
    assert fragments_won({0: few}, {0: (2, withheld)}), "who went on are not most"


def test_versions_of_few_at_the_end_neither_help_a_lineage_to_win_nor_are_taken_over() -> None:
    """Two of seven withheld their votes from a version, signed the next one, and then made versions by themselves."""
    seven, hostile = PEERS[:7], PEERS[5:7]
    base = grown(chain_of(core(founders=seven)), 2, seven)
    withheld = branch(base, 1, (*PEERS[:4], *hostile), b"withheld")
    on = certificate(base, seven, (*PEERS[2:5], *hostile), changes={"attempt": 1})
    gone_on = base.truncated(2)
    gone_on.append(on)
    tail = branch(withheld, 3, hostile, b"of two", 10**12)
    assert without_tail(tail, 2).digest == withheld.digest
    for shown in (withheld, tail, without_tail(tail, 2)):
        assert not fragments_won({0: gone_on}, {0: (2, shown)})
        assert fragments_won({0: shown}, {0: (2, gone_on)})


def test_versions_at_the_end_that_most_signed_stay() -> None:
    base = stem()
    left = branch(branch(base, 1, FIVE, b"all"), 1, FIVE[:2], b"of two")
    assert without_tail(left, 2).version == 3
    assert without_tail(branch(left, 1, FIVE[1:3], b"a third comes"), 2).version == 5
    assert without_tail(branch(base, 3, FIVE[:2], b"of two"), 2).version == 5, "from the fork on"


def test_convicted_keys_supersede_nothing() -> None:
    base = stem()
    withheld, gone_on = branch(base, 1, FIVE, b"withheld"), branch(base, 2, FIVE[:3], b"on")
    assert fragments_won({0: gone_on}, {0: (2, withheld)}, {FIVE[0]})


def test_one_members_claim_of_tokens_cannot_outweigh_the_others() -> None:
    base = stem()
    honest = certificate(base, FIVE[:3], tokens=100)
    liar = [one.model_copy(update={"tokens": 10**12}) for one in honest.outcome.contributors[:1]]
    lied = certificate(base, FIVE[:3], changes={"contributors": (*liar, *honest.outcome.contributors[1:])})
    assert claim([Branch(base.active_set(), (lied,))]).tokens == 350


def test_long_branches_are_compared_over_as_many_versions_as_one_answer_holds() -> None:
    """Each side knows all its own versions but only one page of the other's: beyond a page they would disagree."""
    base = stem()
    long, longer = branch(base, 40, FIVE[:2], b"p"), branch(base, 60, FIVE[3:], b"q")
    page = CHAIN_PAGE_MAX
    seen_by_long = continuation(long, longer.after(2, page))
    seen_by_longer = continuation(longer, long.after(2, page))
    assert seen_by_long is not None
    assert seen_by_longer is not None
    assert fragments_won({0: long}, {0: seen_by_long}) != fragments_won({0: longer}, {0: seen_by_longer})
    assert page == VERSIONS_CLAIMED


def test_fragments_are_compared_together() -> None:
    own = core(pace=PACE.model_copy(update={"fragments": 3}))
    bases = [grown(chain_of(own, fragment), 1, FIVE) for fragment in range(3)]
    ours = {index: branch(base, 1, FIVE[: 1 if index else 2], b"o") for index, base in enumerate(bases)}
    theirs = {index: (1, branch(base, 1, FIVE[2:4] if index else FIVE[4:], b"t")) for index, base in enumerate(bases)}
    assert not fragments_won({0: ours[0]}, {0: theirs[0]})
    assert fragments_won(ours, theirs) == {0, 1, 2}


def test_a_branch_that_alone_supersedes_in_one_fragment_wins_in_all() -> None:
    three, two = (PEERS[0], PEERS[1], PEERS[4]), PEERS[2:4]
    first, second = (lineage(([(3, half)],) * 2, half[0].encode()) for half in (three, two))
    assert fragments_won(second, seen(first)) == {0, 1}
    assert not fragments_won(first, seen(second))


def test_a_branch_that_most_signed_is_not_undone_because_of_another_fragment() -> None:
    """Four of five went back to an earlier attempt in one fragment, and have gone on for long in the other.

    There they are shown a withheld version, or versions that one key made by itself in no time.
    """
    five = PEERS[2:7]
    again = STEMS[0].truncated(4)
    again.append(certificate(again, FIVE, salt=b"of a later attempt", changes={"attempt": 1}))
    ours = {0: branch(STEMS[0], 1, FIVE, b"on"), 1: branch(STEMS[1], 60, five[:4], b"on")}
    for versions, roster in (1, five), (40, five[4:]):
        shown = {0: again, 1: branch(STEMS[1], versions, roster, b"other", 10**9)}
        assert fragments_won(ours, seen(shown)) == {0}
        assert fragments_won(shown, seen(ours)) == {1}


@pytest.mark.parametrize("versions", [3, 70])
def test_each_half_of_a_swarm_keeps_the_fragments_of_which_it_is_most(versions: int) -> None:
    halves = PEERS[:3], PEERS[3:7]
    first, second = (lineage(([(versions, half)],) * 2, half[0].encode()) for half in halves)
    assert fragments_won(first, seen(second)) == {1}
    assert fragments_won(second, seen(first)) == {0}


def test_however_much_less_than_a_third_made_undoes_no_fresh_version() -> None:
    """Copies of the fresh version may have few honest votes: just the first ones that were enough."""
    many, hostile = PEERS[:13], PEERS[:4]
    base = grown(chain_of(core(founders=many)), 2, many)
    fresh, newest = base.truncated(2), certificate(base, PEERS[:10], voters=PEERS[:7])
    assert base.refusal(newest) is None
    fresh.append(newest)
    made = branch(branch(base, 1, hostile, b"first"), 39, hostile, b"of few", 10**9)
    assert not fragments_won({0: fresh}, {0: (2, made)})


def test_the_newest_shared_version_is_the_ancestor() -> None:
    base = stem(4)
    ours, theirs = branch(base, 3, FIVE[:3], b"o"), branch(base, 2, FIVE[:2], b"t")
    assert ancestor(ours, known_digests(theirs)) == 4
    assert ancestor(ours, known_digests(ours)) == ours.version
    assert ancestor(ours, (bytes(32),)) is None


def test_the_digests_that_are_asked_for_are_bounded() -> None:
    assert len(known_digests(stem(100))) <= LINEAGE_DEPTH_MAX + 1
    assert len(known_digests(branch(stem(1), 1022, FIVE[:1], b"few"))) <= LINEAGE_DEPTH_MAX + 1
    assert len(known_digests(stem(3))) == 4


def test_a_continuation_is_found_whatever_is_known_of_it() -> None:
    base = stem(2)
    theirs = branch(base, 5, FIVE[:4], b"t")
    for known in range(2, 8):
        found = continuation(theirs.truncated(known), theirs.after(0, 32))
        if known == theirs.version:
            assert found is None
        else:
            assert found is not None
            assert (found[0], found[1].digest) == (known, theirs.digest)


def test_a_part_of_our_own_chain_is_no_fork() -> None:
    ours = stem(6)
    assert continuation(ours, ours.after(1, 3)) is None
    assert continuation(ours, ()) is None


def test_certificates_that_do_not_follow_each_other_are_ignored() -> None:
    base = stem(3)
    theirs = branch(base, 4, FIVE[:4], b"t").after(3, 9)
    assert continuation(base, theirs[1:]) is None
    assert continuation(base, (theirs[0], theirs[2])) is None
    bad = certificate(base, FIVE, voters=FIVE[:2])
    assert continuation(base, (bad,)) is None


@pytest.mark.parametrize(("depth", "found"), [(LINEAGE_DEPTH_MAX, True), (LINEAGE_DEPTH_MAX + 1, False)])
def test_forks_deeper_than_the_horizon_never_count(depth: int, found: bool) -> None:
    """Peers that held most keys long ago must not rewrite later versions."""
    base = stem(1)
    ours, theirs = branch(base, depth, FIVE[:3], b"o"), branch(base, 3, FIVE, b"t")
    assert (continuation(ours, theirs.after(1, 3)) is not None) == found


def test_no_depth_protects_what_few_made() -> None:
    """Else a single active key, once followed, could make so many versions that there is no way back."""
    base = stem(20)
    ours, theirs = branch(base, 200, FIVE[:1], b"o"), branch(base, 3, FIVE[1:], b"t")
    shared = ancestor(theirs, known_digests(ours))
    assert shared is not None
    found = continuation(ours, theirs.after(shared, CHAIN_PAGE_MAX))
    assert found is not None
    assert fragments_won({0: ours}, {0: found})
    assert continuation(ours.truncated(150), theirs.after(20, 3)) is not None
    most = branch(branch(ours, 1, FIVE[:2], b"a second"), 1, FIVE[:3], b"a third")
    assert continuation(most, theirs.after(20, 3)) is None


def test_a_version_that_fewer_signed_last_undoes_no_long_work_of_few() -> None:
    """One of four withheld its vote, one was away, and two went on for long with others."""
    four = PEERS[:4]
    base = grown(chain_of(core(founders=four)), 20, four)
    withheld = branch(base, 1, (*four[:2], four[3]), b"withheld")
    on = branch(branch(base, 1, four[:2], b"two"), 200, (*four[:2], *PEERS[4:7]), b"on")
    found = continuation(on, withheld.after(20, 1))
    assert found is not None
    assert not fragments_won({0: on}, {0: found})
    assert fragments_won({0: on.truncated(40)}, {0: found}), "of what is not long all that signed it count"


def test_a_fork_is_found_however_many_others_lie_between() -> None:
    """Three left for good long ago, so the horizon lies there; forks after it are found as before."""
    base = branch(branch(stem(20), 1, FIVE[:2], b"m"), 60, (*FIVE[:2], *PEERS[5:8]), b"new")
    led_away = branch(base, 200, PEERS[5:6], b"o"), branch(base, 3, (*FIVE[:2], *PEERS[6:8]), b"t")
    parted = branch(base, 60, PEERS[6:8], b"o"), branch(base, 60, (*FIVE[:2], PEERS[5]), b"t")
    for ours, theirs in (led_away, parted):
        assert len(known_digests(ours)) <= LINEAGE_DEPTH_MAX + 1
        shared = ancestor(theirs, known_digests(ours))
        assert shared is not None
        found = continuation(ours, theirs.after(shared, CHAIN_PAGE_MAX))
        assert found is not None
        assert found[0] == base.version


def test_versions_that_few_made_long_ago_are_settled() -> None:
    """Credit for it is summed up by then, and invites may point there."""
    few = branch(stem(2), UNSETTLED_VERSIONS + 1, FIVE[:2], b"few")
    assert few.truncated(UNSETTLED_VERSIONS).minority_since == 2
    assert few.minority_since is None


def test_all_versions_are_named_down_to_an_ordinary_horizon() -> None:
    """So a page of the answer begins at the fork."""
    chain = stem(100)
    assert known_digests(chain) == tuple(chain.digest_at(version) for version in range(100, 35, -1))


def test_a_branch_that_few_began_is_known_after_a_restart() -> None:
    few = branch(stem(2), 100, FIVE[:2], b"few")
    kept = few.certificates[:]
    assert Chain.holding(few.rules, 0, few.genesis, kept).minority_since == few.minority_since == 2
    assert Chain.holding(few.rules, 0, few.genesis, kept[50:]).minority_since is None, "it lies before what is kept"
    assert Chain.holding(few.rules, 0, few.genesis, []).version == 0


def test_a_majority_is_counted_over_the_whole_branch() -> None:
    base = stem(2)
    two = branch(base, 1, FIVE[:2], b"t")
    assert not majority_signed(two, 2)
    assert majority_signed(branch(two, 1, FIVE[1:4], b"t"), 2)
    assert not majority_signed(branch(two, 1, (FIVE[0], *PEERS[5:9]), b"t"), 2)
