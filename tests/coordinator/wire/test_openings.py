"""Opened leaves: proofs that hold, proofs that do not, and the draw of leaves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.wire.merkle import MerkleTree, merkle_tree, verify_leaf
from coordinator.wire.openings import (
    depth_of,
    drawn_leaves,
    is_opened,
    known_nodes,
    seed_of,
    sibling_places,
    siblings_from,
)

LEAF_BYTES = 4
SEED = seed_of(bytes(16), 0, 0)


def tree_of(leaves: int) -> tuple[MerkleTree, list[bytes]]:
    pieces = [index.to_bytes(LEAF_BYTES, "big") for index in range(leaves)]
    return merkle_tree(b"".join(pieces), LEAF_BYTES), pieces


def opened(tree: MerkleTree, indices: list[int]) -> tuple[bytes, ...]:
    return tuple(tree.levels[level][index] for level, index in sibling_places(indices, len(tree.leaves)))


some_leaves = st.integers(1, 70).flatmap(
    lambda leaves: st.tuples(st.just(leaves), st.sets(st.integers(0, leaves - 1), min_size=1).map(sorted))
)


@given(some_leaves)
def test_leaves_prove_themselves_together(drawn: tuple[int, list[int]]) -> None:
    leaves, indices = drawn
    tree, pieces = tree_of(leaves)
    siblings = opened(tree, indices)
    assert is_opened(tree.root, [pieces[index] for index in indices], indices, leaves, siblings)
    assert len(tree.levels) == depth_of(leaves) + 1


@given(some_leaves, st.data())
def test_nothing_else_proves_them(drawn: tuple[int, list[int]], data: st.DataObject) -> None:
    leaves, indices = drawn
    tree, pieces = tree_of(leaves)
    chosen, siblings = [pieces[index] for index in indices], list(opened(tree, indices))
    place = data.draw(st.integers(0, len(chosen) - 1))
    wrong = [*chosen[:place], b"????", *chosen[place + 1 :]]
    assert not is_opened(tree.root, wrong, indices, leaves, siblings)
    assert not is_opened(tree.root, chosen, indices, leaves, [*siblings, bytes(32)])
    assert not is_opened(tree.root, chosen[1:], indices, leaves, siblings)
    assert not is_opened(bytes(32), chosen, indices, leaves, siblings)
    if siblings:
        at = data.draw(st.integers(0, len(siblings) - 1))
        assert not is_opened(tree.root, chosen, indices, leaves, [*siblings[:at], bytes(32), *siblings[at + 1 :]])
        assert not is_opened(tree.root, chosen, indices, leaves, siblings[1:])


@given(some_leaves, st.data())
def test_fewer_leaves_keep_their_proof(drawn: tuple[int, list[int]], data: st.DataObject) -> None:
    leaves, indices = drawn
    tree, pieces = tree_of(leaves)
    nodes = known_nodes([pieces[index] for index in indices], indices, leaves, opened(tree, indices))
    assert nodes is not None
    fewer = sorted(data.draw(st.sets(st.sampled_from(indices), min_size=1)))
    assert siblings_from(nodes, fewer, leaves) == opened(tree, fewer)
    one = fewer[:1]
    assert verify_leaf(tree.root, pieces[one[0]], one[0], leaves, siblings_from(nodes, one, leaves))


@pytest.mark.parametrize("indices", [[], [1, 1], [2, 1], [-1], [5]])
def test_indices_that_are_no_leaves_in_order_prove_nothing(indices: list[int]) -> None:
    tree, pieces = tree_of(5)
    assert not is_opened(tree.root, [pieces[0]] * len(indices), indices, 5, list(tree.leaves))


@given(st.binary(min_size=32, max_size=32), st.integers(1, 300), st.integers(1, 320))
def test_the_drawn_leaves_are_different_ones(seed: bytes, leaves: int, count: int) -> None:
    drawn = drawn_leaves(seed, leaves, count)
    assert list(drawn) == sorted(set(drawn))
    assert len(drawn) == min(count, leaves)
    assert set(drawn) <= set(range(leaves))
    assert drawn == drawn_leaves(seed, leaves, count)


def test_every_leaf_is_as_likely_as_any_other() -> None:
    """χ² over 20 leaves, of which 5 are drawn 4,000 times, exceeds 43.8 once in a thousand."""
    seen = Counter(leaf for n in range(4000) for leaf in drawn_leaves(seed_of(n.to_bytes(16, "big"), 0, 0), 20, 5))
    assert sum((seen[leaf] - 1000) ** 2 / 750 for leaf in range(20)) < 43.8


def test_seeds_differ_by_nonce_partition_and_turn() -> None:
    seeds = {seed_of(bytes([n]) * 16, p, t) for n in range(3) for p in range(3) for t in range(2)}
    assert len(seeds) == 18
