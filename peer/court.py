"""What takes tensors to tell of evidence: whether committed bytes decode to finite numbers (`coordinator.evidence`)."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.evidence import OpenedLeaf
from coordinator.manifest import PEERS_PER_GROUP_MAX
from coordinator.merkle import leaf_count, merkle_tree
from dht.errors import PeerError
from peer.codec import Buffer, Codec
from peer.fragments import FragmentLayout, partition_bounds

Part = tuple[int, int, int]
"""Fragment, number of partitions, partition."""


class TensorCourt:
    """Decides by the run's layout and the codec of contributions. Implements `coordinator.evidence.Court`."""

    def __init__(self, layouts: Sequence[FragmentLayout], codec: Codec) -> None:
        self._layouts = layouts
        self._codec = codec

    @property
    def codec(self) -> str:
        return self._codec.name

    def leaves(self, part: Part) -> int:
        """How many leaves the encoding of such a part has; 0 if there is no such part."""
        elements = self._elements(part)
        return 0 if elements is None else leaf_count(self._codec.encoded_bytes(elements), self._codec.leaf_bytes)

    def is_garbage(self, part: Part, index: int, piece: bytes) -> bool:
        """Whether these bytes, as that leaf, have the wrong length or do not decode to finite numbers."""
        elements, each = self._elements(part), self._codec.leaf_elements
        if elements is None or not 0 <= index < self.leaves(part):
            return False
        try:
            self._codec.decode(piece, min(each, elements - index * each))
        except PeerError:
            return True
        return False

    def find(self, part: Part, data: Buffer) -> OpenedLeaf | None:
        """A leaf of a part that is garbage, opened; None if there is none, or the part is cut into other leaves."""
        size = self._codec.leaf_bytes
        if leaf_count(len(data), size) != self.leaves(part):
            return None
        for index in range(self.leaves(part)):
            piece = bytes(data[index * size : (index + 1) * size])
            if self.is_garbage(part, index, piece):
                path = merkle_tree(data, size).path(index)
                return OpenedLeaf(partition=part[2], index=index, piece=piece, path=path)
        return None

    def _elements(self, part: Part) -> int | None:
        fragment, partitions, partition = part
        if not (fragment < len(self._layouts) and partition < partitions <= PEERS_PER_GROUP_MAX):
            return None
        bounds = partition_bounds(self._layouts[fragment], partitions)
        return bounds[partition + 1] - bounds[partition]
