"""The checks of evidence that need tensors (`coordinator.trust.evidence`).

They tell whether committed bytes decode to finite numbers, and whether a leaf of a result follows from its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.run.manifest import PEERS_PER_GROUP_MAX, OuterSpec
from coordinator.trust.evidence import OpenedLeaf, UnknownChargeError
from coordinator.wire.inputs import Committed
from coordinator.wire.merkle import leaf_count, merkle_tree
from coordinator.wire.messages import Result
from coordinator.wire.openings import Refutation, is_opened
from dht.errors import PeerError
from peer.numerics.codec import CODECS, Buffer
from peer.numerics.coefficient_check import BY_WEIGHT, published_form
from peer.numerics.fragments import FragmentLayout, Partitioning, partition_bounds
from peer.numerics.leaves import Leaves, Look, verified_look
from peer.numerics.merge_plugin import merge_rule
from peer.numerics.recomputation import Recomputation
from peer.numerics.reduction import segment_inputs
from peer.numerics.robust.plugin_rule import RuleError

Part = tuple[int, int, int]
"""Fragment, number of partitions, partition."""


class TensorProofChecker:
    """Checks proofs by layout, codecs and merge rule of a run. Implements `coordinator.trust.evidence.ProofChecker`."""

    def __init__(self, layouts: Sequence[FragmentLayout], outer: OuterSpec) -> None:
        """Raises UsageError if the run's merge rule comes from a package that cannot be used here."""
        self._layouts = layouts
        self._codec = CODECS[outer.contribution_codec]
        self._result_codec = CODECS[outer.result_codec]
        self.rule = merge_rule(outer)

    @property
    def codec(self) -> str:
        return self._codec.name

    def leaves(self, part: Part) -> int:
        """Return the number of leaves of this part's encoding; 0 if there is no such part."""
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
        """Find and open a leaf of a part that is garbage; None if there is none, or the number of leaves is wrong."""
        size = self._codec.leaf_bytes
        if leaf_count(len(data), size) != self.leaves(part):
            return None
        for index in range(self.leaves(part)):
            piece = bytes(data[index * size : (index + 1) * size])
            if self.is_garbage(part, index, piece):
                path = merkle_tree(data, size).path(index)
                return OpenedLeaf(partition=part[2], index=index, piece=piece, path=path)
        return None

    def is_false(self, fragment: int, result: Result, committed: Committed, shown: Refutation) -> bool:
        """Whether the shown leaf proves that no honest reducer signs this result over these commitments.

        Only exact faults count: bytes that differ; a number of coefficients that no honest result has; coefficients
        that must be the weights and are not; an input that no honest reducer takes. Raises PeerError if a shown leaf is
        not under its signed root, or if no leaf of such results can be recomputed. Raises UnknownChargeError, which
        blames no peer, if the plugin of the run's rule fails here.
        """
        partitions = len(committed.commits[0].part_roots)
        if self._elements((fragment, partitions, result.partition)) is None:
            raise PeerError("a result of a partition that does not exist")
        cut = Partitioning.of(self._layouts[fragment], partitions)
        inputs = committed.partition(result.partition, result.included)
        leaves = Leaves(cut.elements(result.partition), self._codec, self._result_codec)
        look = verified_look(leaves, (shown.leaf,), inputs, {one.member: one for one in shown.inputs})
        if look is None or not is_opened(result.root, [shown.piece], [shown.leaf], leaves.count, shown.siblings):
            raise PeerError("leaves that nobody signed for")
        if any(len(one.squared_norms) != len(cut.segments) for one in inputs):
            return True
        segments = segment_inputs(inputs, self.rule, cut, result.partition)
        merging = Recomputation(self.rule, segments, result.coefficients, len(inputs))
        return self._differs(merging, look, shown.piece)

    def _differs(self, merging: Recomputation, look: Look, piece: bytes) -> bool:
        if len(merging.coefficients) != merging.coefficients_due:
            return True
        if not merging.is_verifiable:
            raise PeerError("a result of which no leaf can be recomputed")
        inputs = [one for _, one in merging.segments]
        if self.rule.name in BY_WEIGHT and not published_form(self.rule.name, merging.coefficients, inputs):
            return True
        try:
            return merging.leaves(look, look.chosen) != piece
        except RuleError as error:
            raise UnknownChargeError(f"the run's merge rule {error}, on this machine") from None

    def _elements(self, part: Part) -> int | None:
        fragment, partitions, partition = part
        if not (fragment < len(self._layouts) and partition < partitions <= PEERS_PER_GROUP_MAX):
            return None
        bounds = partition_bounds(self._layouts[fragment], partitions)
        return bounds[partition + 1] - bounds[partition]
