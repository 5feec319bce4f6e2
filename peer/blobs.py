"""Tensor bytes of rounds in flight, by their Merkle root. Bounded; what is oldest goes first."""

from __future__ import annotations

from collections import OrderedDict

from coordinator.merkle import MerkleTree, merkle_root, merkle_tree


class BlobStore:
    """Content-addressed memory: parts and results that we made or received."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blobs: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0
        self._trees: dict[bytes, MerkleTree] = {}

    def put(self, root: bytes, data: bytes) -> None:
        """Keep `data`, whose root the caller has computed."""
        if root in self._blobs:
            self._blobs.move_to_end(root)
            return
        self._blobs[root] = data
        self._bytes += len(data)
        while self._bytes > self._bytes_max and len(self._blobs) > 1:
            oldest, dropped = self._blobs.popitem(last=False)
            self._bytes -= len(dropped)
            self._trees.pop(oldest, None)

    def add(self, data: bytes, leaf_bytes: int) -> bytes:
        """Keep received bytes under the root that they really have; returns it."""
        root = merkle_root(data, leaf_bytes)
        self.put(root, data)
        return root

    def get(self, root: bytes) -> bytes | None:
        """The bytes with this root, or None if they never came or are gone."""
        return self._blobs.get(root)

    def tree(self, root: bytes, leaf_bytes: int) -> MerkleTree | None:
        """The Merkle tree over the bytes with this root; built once, when leaves are first opened."""
        data = self.get(root)
        if data is None:
            return None
        if root not in self._trees:
            self._trees[root] = merkle_tree(data, leaf_bytes)
        return self._trees[root]

    def __len__(self) -> int:
        return len(self._blobs)
