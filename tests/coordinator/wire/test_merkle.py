from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.wire.merkle import (
    SHORT_LEAF_BYTES_MAX,
    leaf_count,
    leaf_digest,
    long_leaf_digest,
    merkle_tree,
    root_of_leaves,
    verify_leaf,
)

LEAF_BYTES = 4
data_with_leaves = st.binary(min_size=1, max_size=150)


def pieces_of(data: bytes) -> list[bytes]:
    return [data[start : start + LEAF_BYTES] for start in range(0, len(data), LEAF_BYTES)]


def rfc6962_root(pieces: list[bytes]) -> bytes:
    """Compute a root by the recursive definition of RFC 6962 §2.1, as an independent oracle."""
    if len(pieces) == 1:
        return hashlib.sha256(b"\x00" + pieces[0]).digest()
    half = 1 << ((len(pieces) - 1).bit_length() - 1)
    return hashlib.sha256(b"\x01" + rfc6962_root(pieces[:half]) + rfc6962_root(pieces[half:])).digest()


@given(data_with_leaves)
def test_root_is_that_of_rfc_6962(data):
    assert merkle_tree(data, LEAF_BYTES).root == rfc6962_root(pieces_of(data))
    assert merkle_tree(memoryview(data), LEAF_BYTES).root == rfc6962_root(pieces_of(data))


def test_empty_data_is_one_empty_leaf():
    root = merkle_tree(b"", LEAF_BYTES).root
    assert root == hashlib.sha256(b"\x00").digest() == leaf_digest(b"")
    assert leaf_count(0, LEAF_BYTES) == 1
    assert verify_leaf(root, b"", 0, 1, merkle_tree(b"", LEAF_BYTES).path(0))


@given(data_with_leaves, st.data())
def test_any_changed_byte_changes_the_root(data, draw):
    at = draw.draw(st.integers(0, len(data) - 1))
    flip = draw.draw(st.integers(1, 255))
    changed = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    assert merkle_tree(changed, LEAF_BYTES).root != merkle_tree(data, LEAF_BYTES).root


@given(data_with_leaves)
def test_a_path_proves_its_piece_at_its_index_only(data):
    tree, pieces = merkle_tree(data, LEAF_BYTES), pieces_of(data)
    assert leaf_count(len(data), LEAF_BYTES) == len(pieces)
    for index, piece in enumerate(pieces):
        path = tree.path(index)
        proven = [at for at in range(-1, len(pieces) + 1) if verify_leaf(tree.root, piece, at, len(pieces), path)]
        assert proven == [index]


@given(data_with_leaves, st.data())
def test_a_damaged_proof_proves_nothing(data, draw):
    tree, pieces = merkle_tree(data, LEAF_BYTES), pieces_of(data)
    index = draw.draw(st.integers(0, len(pieces) - 1))
    path = tree.path(index)
    assert not verify_leaf(tree.root, pieces[index] + b"\x00", index, len(pieces), path)
    assert not verify_leaf(tree.root, pieces[index], index, len(pieces), (*path, b"\x00" * 32))
    if path:
        assert not verify_leaf(tree.root, pieces[index], index, len(pieces), path[:-1])
        at = draw.draw(st.integers(0, len(path) - 1))
        other = hashlib.sha256(path[at]).digest()
        assert not verify_leaf(tree.root, pieces[index], index, len(pieces), (*path[:at], other, *path[at + 1 :]))


def test_an_inner_node_does_not_pass_for_a_leaf():
    tree = merkle_tree(b"aaaabbbb", LEAF_BYTES)
    forged = tree.leaves[0] + tree.leaves[1]
    assert not verify_leaf(tree.root, forged, 0, 1, ())
    assert merkle_tree(forged, 64).root != tree.root


@given(data_with_leaves)
def test_a_list_of_leaf_digests_proves_itself(data):
    tree = merkle_tree(data, LEAF_BYTES)
    assert root_of_leaves(tree.leaves) == tree.root
    assert [leaf_digest(piece) for piece in pieces_of(data)] == list(tree.leaves)


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="at least one byte"):
        merkle_tree(b"a", 0)
    with pytest.raises(ValueError, match="at least one leaf"):
        root_of_leaves([])
    for index in (-1, 2):
        with pytest.raises(IndexError):
            merkle_tree(b"aaaab", LEAF_BYTES).path(index)


def test_a_long_leaf_hashes_by_blake3_as_published():
    """The key derivation of the BLAKE3 paper, over its first test vectors' input."""
    from blake3 import blake3

    context = "BLAKE3 2019-12-27 16:29:52 test vectors context"
    published = "2cc39783c223154fea8dfb7c1b1660f2ac2dcbd1c1de8277b0b0dd39b7e50d7d"
    assert blake3(b"", derive_key_context=context).hexdigest() == published
    ours = "muster 2 leaf of more than 1024 bytes"
    assert long_leaf_digest(b"piece") == blake3(b"piece", derive_key_context=ours).digest()


@given(st.binary(max_size=3 * SHORT_LEAF_BYTES_MAX), st.integers(1, 2 * SHORT_LEAF_BYTES_MAX))
def test_which_hash_leaves_have_depends_on_how_long_they_may_be(data, leaf_bytes):
    """It does not depend on their actual length: the last one may be short in both cases."""
    digest = leaf_digest if leaf_bytes <= SHORT_LEAF_BYTES_MAX else long_leaf_digest
    pieces = [data[start : start + leaf_bytes] for start in range(0, len(data), leaf_bytes)] or [b""]
    assert merkle_tree(data, leaf_bytes).leaves == tuple(map(digest, pieces))


def test_a_digest_of_one_kind_is_none_of_the_other():
    tree = merkle_tree(bytes(SHORT_LEAF_BYTES_MAX), SHORT_LEAF_BYTES_MAX)
    assert tree.root != merkle_tree(bytes(SHORT_LEAF_BYTES_MAX), SHORT_LEAF_BYTES_MAX + 1).root
