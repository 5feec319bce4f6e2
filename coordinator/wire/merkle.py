"""Merkle trees: one digest covers many pieces, and each piece can be verified alone (design §6.1, §6.2).

Leaves are consecutive pieces of `leaf_bytes` (the last may be shorter); empty data is one empty leaf. With H for
SHA-256, a leaf hashes as `H(0x00 ‖ piece)` and an inner node as `H(0x01 ‖ left ‖ right)`, so that neither can pass for
the other. A node without a sibling moves up one level unchanged. (This is the tree of RFC 6962 §2.1.)

A tree whose leaves may be longer than `SHORT_LEAF_BYTES_MAX` hashes them by BLAKE3 instead, in a context of its own.
That takes a fifth of the time for long leaves, but more time than SHA-256 for short ones (docs/adr/0072). The root
tells neither the number of leaves nor their length: the verifier knows both from the layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

SHORT_LEAF_BYTES_MAX = 1024

_LEAF = b"\x00"
_NODE = b"\x01"
_LEAF_BEGUN = hashlib.sha256(_LEAF)
_LONG_LEAF = "muster 2 leaf of more than 1024 bytes"


@dataclass(frozen=True, slots=True)
class MerkleTree:
    """Every digest of a tree, from the leaves (`levels[0]`) to the root: build once, open many leaves."""

    levels: tuple[tuple[bytes, ...], ...]

    @property
    def root(self) -> bytes:
        return self.levels[-1][0]

    @property
    def leaves(self) -> tuple[bytes, ...]:
        """The leaf digests in order; `root_of_leaves` checks such a list against the root."""
        return self.levels[0]

    @property
    def nodes(self) -> int:
        """Number of digests in the tree."""
        return sum(map(len, self.levels))

    def path(self, index: int) -> tuple[bytes, ...]:
        """Return the siblings from leaf `index` up to the root; raises IndexError if there is no such leaf."""
        if not 0 <= index < len(self.leaves):
            raise IndexError(f"leaf {index} of {len(self.leaves)}")
        siblings: list[bytes] = []
        for level in self.levels[:-1]:
            sibling = index ^ 1
            if sibling < len(level):
                siblings.append(level[sibling])
            index //= 2
        return tuple(siblings)


def merkle_tree(data: bytes | memoryview, leaf_bytes: int) -> MerkleTree:
    """Build the whole tree over `data` cut into leaves of `leaf_bytes`."""
    return tree_of_leaves(leaf_digests(data, leaf_bytes))


def leaf_digests(data: bytes | memoryview, leaf_bytes: int) -> list[bytes]:
    """Return the digests of the leaves of `leaf_bytes` into which `data` is cut, in order."""
    if leaf_bytes < 1:
        raise ValueError("a leaf has at least one byte")
    view = memoryview(data).cast("B")
    starts = range(0, max(len(view), 1), leaf_bytes)
    digest = leaf_digest if leaf_bytes <= SHORT_LEAF_BYTES_MAX else long_leaf_digest
    return [digest(view[start : start + leaf_bytes]) for start in starts]


def root_of_leaves(digests: Sequence[bytes]) -> bytes:
    """Return the root over leaf digests, as `MerkleTree.leaves` lists them; needs at least one."""
    return tree_of_leaves(digests).root


def leaf_count(data_bytes: int, leaf_bytes: int) -> int:
    """Return how many leaves a tree over `data_bytes` has."""
    return max(1, -(-data_bytes // leaf_bytes))


def leaf_digest(piece: bytes | memoryview) -> bytes:
    """Return the digest of one leaf in a tree of short leaves."""
    hashed = _LEAF_BEGUN.copy()  # starts with the prefix, so that the piece need not be copied behind it
    hashed.update(piece)
    return hashed.digest()


def long_leaf_digest(piece: bytes | memoryview) -> bytes:
    """Return the digest of one leaf in a tree whose leaves may be long."""
    return blake3(piece, derive_key_context=_LONG_LEAF).digest()


def verify_leaf(root: bytes, piece: bytes | memoryview, index: int, leaves: int, path: Sequence[bytes]) -> bool:
    """True if `piece` is the short leaf `index` of the `leaves` under `root`; never raises on hostile input."""
    if not 0 <= index < leaves:
        return False
    digest, level = leaf_digest(piece), leaves
    siblings = iter(path)
    while level > 1:
        if index ^ 1 < level:
            sibling = next(siblings, None)
            if sibling is None:
                return False
            digest = node_digest(sibling, digest) if index & 1 else node_digest(digest, sibling)
        index //= 2
        level = (level + 1) // 2
    return next(siblings, None) is None and digest == root


def node_digest(left: bytes, right: bytes) -> bytes:
    """Return the digest of an inner node."""
    return hashlib.sha256(_NODE + left + right).digest()


def tree_of_leaves(leaves: Sequence[bytes]) -> MerkleTree:
    """Build the whole tree over leaf digests; raises ValueError if there are none."""
    if not leaves:
        raise ValueError("a tree has at least one leaf")
    levels = [tuple(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        above = [node_digest(left, right) for left, right in zip(below[::2], below[1::2], strict=False)]
        if len(below) % 2:
            above.append(below[-1])
        levels.append(tuple(above))
    return MerkleTree(tuple(levels))
