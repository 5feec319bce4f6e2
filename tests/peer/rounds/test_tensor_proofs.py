"""Invalid data in real encodings: reducers find it, anybody can judge it, and honest peers never encode it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.run.manifest import OuterSpec
from coordinator.wire.merkle import merkle_tree, verify_leaf
from peer.numerics.codec import CODECS, Codec
from peer.numerics.fragments import FragmentLayout, Partitioning, TensorSpec
from peer.rounds.tensor_proofs import TensorProofChecker

LAYOUTS = (FragmentLayout(0, (TensorSpec("a", (40, 100)), TensorSpec("b", (33, 7)))),)
PARTITIONS = 3
codecs = st.sampled_from(list(CODECS.values()))


def court_of(codec: Codec) -> TensorProofChecker:
    return TensorProofChecker(LAYOUTS, OuterSpec(contribution_codec=codec.name))  # type: ignore[arg-type]


def encoded(codec: Codec, partition: int, seed: int = 0, scale: float = 1.0) -> bytes:
    elements = Partitioning.of(LAYOUTS[0], PARTITIONS).elements(partition)
    generator = torch.Generator().manual_seed(seed)
    return codec.encode(torch.randn(elements, generator=generator) * scale)


@given(codecs, st.integers(0, PARTITIONS - 1), st.integers(0, 99), st.sampled_from([0.0, 1e-38, 1.0, 3e38]))
def test_bytes_that_a_codec_encodes_are_never_garbage(codec: Codec, partition: int, seed: int, scale: float) -> None:
    proof_checker, part = court_of(codec), (0, PARTITIONS, partition)
    elements = Partitioning.of(LAYOUTS[0], PARTITIONS).elements(partition)
    generator = torch.Generator().manual_seed(seed)
    vector = (torch.randn(elements, generator=generator) * scale).clamp(-3.4e38, 3.4e38)
    assert proof_checker.find(part, codec.encode(vector)) is None


@pytest.mark.parametrize("codec", list(CODECS.values()), ids=lambda codec: codec.name)
@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_a_part_that_does_not_decode_is_opened_where_it_does_not(codec: Codec, partition: int) -> None:
    proof_checker, part = court_of(codec), (0, PARTITIONS, partition)
    data = bytearray(encoded(codec, partition))
    at = (proof_checker.leaves(part) - 1) * codec.leaf_bytes  # in the last leaf
    data[at : at + 4] = b"\xff\xff\xff\xff"
    found = proof_checker.find(part, bytes(data))
    assert found is not None
    assert found.index == proof_checker.leaves(part) - 1
    root = merkle_tree(bytes(data), codec.leaf_bytes).root
    assert verify_leaf(root, found.piece, found.index, proof_checker.leaves(part), found.path)
    assert proof_checker.is_garbage(part, found.index, found.piece)


def test_parts_that_do_not_exist_hold_no_garbage() -> None:
    proof_checker = court_of(CODECS["int8"])
    for part in [(1, 3, 0), (0, 3, 3), (0, 10**6, 0)]:
        assert proof_checker.leaves(part) == 0
        assert not proof_checker.is_garbage(part, 0, b"")
    assert not proof_checker.is_garbage((0, 3, 0), 10**6, b"")
    assert proof_checker.find((0, 3, 0), b"far too short") is None
