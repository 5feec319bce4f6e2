"""The leaves of one partition: their positions in results and contributions, and opened leaves with proofs.

A leaf of the result covers some leaves of every input, fewer or more where their codecs differ (design §6.2 step 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coordinator.wire.inputs import ReduceInput
from coordinator.wire.merkle import leaf_count
from coordinator.wire.openings import OpenedInput, depth_of, known_nodes, siblings_from
from dht.errors import PeerError
from dht.statement import DIGEST_BYTES
from peer.numerics.codec import Buffer, Codec

SHARED_LEVELS = 2  # levels of a proof's path, on average, that the leaves of one opening share


@dataclass(frozen=True, slots=True)
class Leaves:
    """The positions of one partition's leaves, in results and in contributions."""

    elements: int
    contribution: Codec
    result: Codec

    @property
    def count(self) -> int:
        """Number of leaves of the result."""
        return leaf_count(self.result.encoded_bytes(self.elements), self.result.leaf_bytes)

    @property
    def input_count(self) -> int:
        """Number of leaves of each contribution."""
        return leaf_count(self.contribution.encoded_bytes(self.elements), self.contribution.leaf_bytes)

    def window(self, leaf: int) -> slice:
        """Return the elements that a leaf of the result encodes, counted from the partition's first."""
        size = self.result.leaf_elements
        return slice(min(leaf * size, self.elements), min((leaf + 1) * size, self.elements))

    def windows(self, chosen: Sequence[int]) -> list[slice]:
        """Return the windows of leaves in ascending order; consecutive leaves share one window."""
        runs: list[tuple[int, int]] = []
        for leaf in chosen:
            first = runs.pop()[0] if runs and runs[-1][1] == leaf else leaf
            runs.append((first, leaf + 1))
        return [slice(self.window(first).start, self.window(end - 1).stop) for first, end in runs]

    def cut_out(self, data: Buffer, chosen: Sequence[int]) -> bytes:
        """Return the bytes of these leaves of a result."""
        size = self.result.leaf_bytes
        return b"".join(data[leaf * size : (leaf + 1) * size] for leaf in chosen)

    def covering(self, leaf: int) -> range:
        """Return the leaves of a contribution that hold the elements of a leaf of the result."""
        return self._holding(self.window(leaf))

    def _holding(self, window: slice) -> range:
        size = self.contribution.leaf_elements
        return range(window.start // size, max(-(-window.stop // size), window.start // size + 1))

    def covering_all(self, leaves: Sequence[int]) -> list[int]:
        """Return the leaves of a contribution for several leaves of the result, each once, in ascending order."""
        return sorted({index for window in self.windows(leaves) for index in self._holding(window)})

    @property
    def bytes_each(self) -> int:
        """Approximate cost of one opened leaf of one input, in bytes."""
        pieces = len(self.covering(0)) + (self.result.leaf_elements % self.contribution.leaf_elements != 0)
        path = max(depth_of(self.input_count) - SHARED_LEVELS, 0)
        return pieces * self.contribution.leaf_bytes + path * (DIGEST_BYTES + 2)

    def elements_in(self, index: int) -> int:
        """Return the number of elements in one leaf of a contribution; only the last has fewer."""
        size = self.contribution.leaf_elements
        return min((index + 1) * size, self.elements) - index * size


@dataclass(frozen=True, slots=True)
class Look:
    """Verified openings: the leaves `indices` of every input in `opened`, which cover `chosen` leaves of the result."""

    leaves: Leaves
    chosen: tuple[int, ...]
    indices: list[int]
    opened: tuple[OpenedInput, ...]
    _decoded: dict[tuple[int, ...], list[Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def vectors(self, chosen: tuple[int, ...]) -> list[Tensor]:
        """Return the elements of every input in these leaves of the result; raises PeerError if one does not decode.

        The result is cached, because a look is first recomputed and then judged.
        """
        if chosen not in self._decoded:
            self._decoded[chosen] = self._decode(chosen)
        return self._decoded[chosen]

    def _decode(self, chosen: tuple[int, ...]) -> list[Tensor]:
        leaves = self.leaves
        own, size = leaves.covering_all(chosen), leaves.contribution.leaf_elements
        counts = [leaves.elements_in(index) for index in own]
        lengths, elements = [leaves.contribution.encoded_bytes(count) for count in counts], sum(counts)
        slices = []
        for window in leaves.windows(chosen):
            first = window.start // size
            offset = (own.index(first) - first) * size
            slices.append(slice(offset + window.start, offset + window.stop))
        opened_at = {index: place for place, index in enumerate(self.indices)}
        places = [opened_at[index] for index in own]
        found = []
        for one in self.opened:
            pieces = [one.pieces[place] for place in places]
            if [len(piece) for piece in pieces] != lengths:
                raise PeerError("a leaf of a contribution has another length than its codec gives it")
            vector = leaves.contribution.decode(b"".join(pieces), elements)
            found.append(torch.cat([vector[part] for part in slices]))
        return found

    def alone(self, leaf: int) -> tuple[OpenedInput, ...]:
        """Return the inputs opened for this leaf only."""
        own, count = list(self.leaves.covering(leaf)), self.leaves.input_count
        first = self.indices.index(own[0])
        found = []
        for one in self.opened:
            nodes = known_nodes(one.pieces, self.indices, count, one.siblings) or {}
            pieces = one.pieces[first : first + len(own)]
            found.append(OpenedInput(member=one.member, pieces=pieces, siblings=siblings_from(nodes, own, count)))
        return tuple(found)


def verified_look(
    leaves: Leaves, chosen: tuple[int, ...], inputs: Sequence[ReduceInput], shown: Mapping[int, OpenedInput]
) -> Look | None:
    """Verify the proof of every included input, by member; None if one is missing or not proven."""
    if any(leaf >= leaves.count for leaf in chosen):
        return None
    indices = leaves.covering_all(chosen)
    opened: list[OpenedInput] = []
    for one in inputs:
        found = shown.get(one.member)
        nodes = None if found is None else known_nodes(found.pieces, indices, leaves.input_count, found.siblings)
        if found is None or nodes is None or nodes[depth_of(leaves.input_count), 0] != one.root:
            return None
        opened.append(found)
    return Look(leaves, chosen, indices, tuple(opened))
