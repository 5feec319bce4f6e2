"""Tensor bytes of rounds in flight, by their Merkle root. Bounded; the oldest are dropped first.

Bytes from one peer fill at most a quarter: beyond that, they displace its own earlier bytes, not those of others or
ours. Bytes that a round in flight has accepted stay as long as others can be dropped. Bytes that no round has accepted
are for latecomers, and have their own bound.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict

from coordinator.wire.merkle import MerkleTree, merkle_tree
from dht.identity import PeerId

SHARES = 4
ENTRY_BYTES = 256  # overhead of our records per entry; small entries would otherwise take far more than their bytes
NODE_BYTES = 128  # of a tree node in memory, with its share of the containers


class BlobStore:
    """Content-addressed memory for parts and results that we made or received.

    `idle_bytes_max` bounds the bytes that no round in flight has accepted; None for the whole capacity.
    """

    def __init__(self, bytes_max: int, idle_bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._idle_bytes_max = bytes_max if idle_bytes_max is None else min(bytes_max, idle_bytes_max)
        self._blobs: OrderedDict[bytes, bytes] = OrderedDict()
        self._senders: dict[bytes, PeerId] = {}  # by root; our own have none
        self._of: dict[PeerId, OrderedDict[bytes, None]] = {}  # roots by sender, oldest first
        self._sent_bytes: Counter[PeerId] = Counter()
        self._trees: dict[bytes, MerkleTree] = {}
        self._bytes = 0
        self._putting = threading.Lock()  # the worker thread puts our results, the event loop those of others
        self.needed: frozenset[bytes] = frozenset()  # dropped last

    def put(self, data: bytes, tree: MerkleTree, sender: PeerId | None = None) -> None:
        """Keep `data` and its tree, which the caller has built. Received data is charged to its sender."""
        root = tree.root
        with self._putting:
            if root in self._blobs:
                self._blobs.move_to_end(root)
                return
            self._blobs[root], self._trees[root] = data, tree
            size_bytes = self._taken(root)
            self._bytes += size_bytes
            if sender is not None:
                self._senders[root] = sender
                self._of.setdefault(sender, OrderedDict())[root] = None
                self._sent_bytes[sender] += size_bytes
            while self._bytes > self._bytes_max and len(self._blobs) > 1:
                self._drop(self._oldest(sender))
            self._drop_idle(root)

    def _drop_idle(self, newest: bytes) -> None:
        """Drop bytes that no round needs, but not the newest: it may be needed in a moment."""
        idle_bytes = self._bytes - sum(self._taken(root) for root in self.needed if root in self._blobs)
        while idle_bytes > self._idle_bytes_max:
            root = next((one for one in self._blobs if one != newest and one not in self.needed), None)
            if root is None:
                break
            idle_bytes -= self._taken(root)
            self._drop(root)

    def _taken(self, root: bytes) -> int:
        return len(self._blobs[root]) + NODE_BYTES * self._trees[root].nodes + ENTRY_BYTES

    def _oldest(self, sender: PeerId | None) -> bytes:
        """Return the root to drop first; one of this sender's if it has more than its share."""
        own = sender is not None and SHARES * self._sent_bytes[sender] > self._bytes_max
        choice = self._of[sender] if own and sender is not None else self._blobs
        return next((root for root in choice if root not in self.needed), next(iter(choice)))

    def _drop(self, root: bytes) -> None:
        size_bytes = self._taken(root)
        del self._blobs[root], self._trees[root]
        self._bytes -= size_bytes
        sender = self._senders.pop(root, None)
        if sender is None:
            return
        del self._of[sender][root]
        self._sent_bytes[sender] -= size_bytes
        if not self._of[sender]:
            del self._of[sender], self._sent_bytes[sender]

    def add(self, data: bytes, leaf_bytes: int, sender: PeerId | None = None) -> bytes | None:
        """Keep received bytes under their true root, and return it; None if they had to be dropped at once."""
        tree = merkle_tree(data, leaf_bytes)
        self.put(data, tree, sender)
        return tree.root if tree.root in self._blobs else None

    def get(self, root: bytes) -> bytes | None:
        """Return the bytes with this root, or None if they are missing."""
        return self._blobs.get(root)

    def tree(self, root: bytes) -> MerkleTree | None:
        """Return the Merkle tree over the bytes with this root, or None as in `get`."""
        return self._trees.get(root)

    def __len__(self) -> int:
        return len(self._blobs)
