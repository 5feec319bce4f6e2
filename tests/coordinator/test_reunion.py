"""What a losing branch may bring (docs/adr/0016): nothing comes in twice, whoever forks from whom and takes in what."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain import Chain
from coordinator.messages import CHAIN_PAGE_MAX, LINEAGE_DEPTH_MAX
from coordinator.reunion import Reunion, contributors_of, fork_of, refusal, returning, reunion_of
from dht.identity import PeerId
from tests.coordinator.rigs import PEERS, chain_of, core, grown

FIVE = PEERS[:5]
STEM = grown(chain_of(core()), 2, FIVE)


def brought(chain: Chain, branch: Chain) -> Reunion:
    found = reunion_of(chain, branch)
    assert found is not None
    return found


class Forest:
    """Chains that grow out of each other, and what their versions have taken in, by the digest of the version."""

    def __init__(self) -> None:
        self.chains = [STEM]
        self.taken: dict[bytes, tuple[bytes, tuple[bytes, ...]]] = {}  # the branch's root, and its versions

    def grow(self, which: int, back: int, roster: tuple[PeerId, ...], salt: bytes) -> None:
        base = self.chains[which % len(self.chains)]
        grown_to = grown(base.truncated(max(2, base.version - back)), 1 + len(salt) % 2, roster, salt)
        self.chains.append(grown_to)

    def take(self, which: int, other: int, salt: bytes) -> None:
        """One chain makes its next version, and that takes another chain's branch in if it may."""
        place = which % len(self.chains)
        chain, branch = self.chains[place], self.chains[other % len(self.chains)]
        reunion = reunion_of(chain, branch)
        if reunion is None:
            return
        roots = [root for root, _ in self.of(chain, reunion.fork)]
        if refusal(reunion, roots, mixed=bool(self.of(branch, reunion.fork))) is not None:
            return
        self.chains[place] = grown(chain, 1, FIVE, salt)
        versions = tuple(one.digest for one in branch.after(reunion.fork, CHAIN_PAGE_MAX))
        self.taken[self.chains[place].digest] = reunion.root, versions

    def of(self, chain: Chain, version: int) -> list[tuple[bytes, tuple[bytes, ...]]]:
        """What a chain has taken in after a version."""
        after = chain.after(version, chain.version - version)
        return [self.taken[one.digest] for one in after if one.digest in self.taken]

    def counted(self, versions: Iterable[bytes]) -> list[bytes]:
        """These versions, and those that they have taken in, and those that these have."""
        found: list[bytes] = []
        for version in versions:
            found += [version, *self.counted(self.taken[version][1] if version in self.taken else ())]
        return found


rosters = st.sampled_from([FIVE, FIVE[:3], FIVE[2:], FIVE[:2], FIVE[3:]])
salts = st.binary(min_size=1, max_size=2)
places = st.integers(0, 4)
grows = st.tuples(st.just("grow"), places, st.integers(0, 2), rosters, salts)
takes = st.tuples(st.just("take"), places, places, salts)


@given(st.lists(st.one_of(grows, takes), max_size=20))
def test_no_version_comes_into_a_chain_twice(story: list[tuple[object, ...]]) -> None:
    forest = Forest()
    for what, *how in story:
        getattr(forest, str(what))(*how)
    for chain in forest.chains:
        counted = forest.counted(one.digest for one in chain.certificates)
        assert len(counted) == len(set(counted))


def test_a_branch_that_has_grown_since_it_came_in_is_refused() -> None:
    forest = Forest()
    forest.grow(0, 0, FIVE[:3], b"win")
    forest.grow(0, 0, FIVE[3:], b"lose")
    forest.take(1, 2, b"merge")
    assert len(forest.taken) == 1
    forest.chains[2] = grown(forest.chains[2], 2, FIVE[3:], b"more")
    forest.take(1, 2, b"again")
    assert len(forest.taken) == 1
    again = brought(forest.chains[1], forest.chains[2])
    assert "already" in str(refusal(again, [again.root], mixed=False))


def test_a_branch_that_has_taken_in_another_is_refused() -> None:
    """The other may have come to the winning chain by itself."""
    one = brought(grown(STEM, 1, FIVE[:3], b"win"), grown(STEM, 1, FIVE[3:], b"lose"))
    assert refusal(one, [], mixed=False) is None
    assert "twice" in str(refusal(one, [], mixed=True))


def test_it_says_where_it_left_and_what_it_holds() -> None:
    lost = grown(STEM, 2, FIVE[3:], b"lose", tokens=70)
    found = brought(grown(STEM, 3, FIVE[:3], b"win"), lost)
    assert (found.fork, found.root, found.head) == (2, lost.certificates[2].digest, lost.digest)
    assert found.state == lost.state
    assert [(one.peer, one.tokens, one.steps) for one in found.contributors] == [
        (peer, 140, 2) for peer in sorted(FIVE[3:])
    ]
    assert sum(one.tokens for one in found.contributors) == sum(one.outcome.tokens for one in lost.after(2, 9))


def test_the_weight_is_the_branchs_part_of_those_who_signed_either_and_stays_that() -> None:
    lost, won = grown(STEM, 2, FIVE[3:], b"lose"), grown(STEM, 2, FIVE[:3], b"win")
    assert brought(won, lost).share == pytest.approx(2 / 5)
    healed = grown(won, 3, FIVE, b"together")  # now those who lost sign, too
    assert brought(healed, lost).share == pytest.approx(2 / 5)


@given(rosters, rosters)
def test_the_losing_side_never_weighs_more_than_the_other(one: tuple[PeerId, ...], other: tuple[PeerId, ...]) -> None:
    assert 0 < brought(grown(STEM, 1, one, b"win"), grown(STEM, 1, other, b"lose")).share <= 0.5


def test_strangers_and_convicted_keys_bring_nothing() -> None:
    """Nobody who was active at the fork has signed: whoever made that branch, it is none of ours."""
    won = grown(STEM, 1, FIVE, b"win")
    assert reunion_of(won, grown(STEM, 1, PEERS[5:8], b"strangers")) is None
    assert reunion_of(won, grown(STEM, 1, FIVE[:2], b"lose"), banned=FIVE[:2]) is None


def test_a_fork_that_lies_too_deep_stays_what_it_is() -> None:
    lost = grown(STEM, 1, FIVE[3:], b"lose")
    assert reunion_of(grown(STEM, LINEAGE_DEPTH_MAX, FIVE[:3], b"win"), lost) is not None
    assert reunion_of(grown(STEM, LINEAGE_DEPTH_MAX + 1, FIVE[:3], b"win"), lost) is None
    long = grown(STEM, CHAIN_PAGE_MAX + 1, FIVE[3:], b"lose")
    assert reunion_of(grown(STEM, 1, FIVE[:3], b"win"), long) is None
    assert reunion_of(grown(STEM, 1, FIVE[:3], b"win"), long.truncated(long.version - 1)) is not None


@given(st.integers(0, 3), st.integers(0, 3))
def test_two_chains_fork_only_where_both_go_on(one: int, other: int) -> None:
    first, second = grown(STEM, one, FIVE[:3], b"one"), grown(STEM, other, FIVE[3:], b"other")
    assert fork_of(first, second) == fork_of(second, first) == (2 if one and other else None)


def test_who_brought_work_to_both_sides_has_to_be_asked() -> None:
    lost = grown(STEM, 1, FIVE[2:], b"lose")
    for versions, roster in itertools.product((1, 3), (FIVE[:2], FIVE[:3])):
        won = grown(STEM, versions, roster, b"win")
        assert returning(won, brought(won, lost)) == set(roster) & set(FIVE[2:])


def test_only_what_a_version_includes_is_summed() -> None:
    (version,) = grown(STEM, 1, FIVE[:3], b"x").after(2, 1)
    left_out = tuple(one.model_copy(update={"included": (1,)}) for one in version.outcome.partitions if one is not None)
    partly = version.model_copy(update={"outcome": version.outcome.model_copy(update={"partitions": left_out})})
    assert [one.peer for one in contributors_of((partly,))] == [FIVE[1]]
