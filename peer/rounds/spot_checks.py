"""Spot checks on tensors: open leaves, and recompute a leaf of a result bit for bit (design §6.2 step 8).

A leaf of the result covers some leaves of every input, fewer or more where their codecs differ. Every peer derives from
layout, codecs and a seed which leaves a voter checks, so a request names only the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from coordinator.core.actions import Inspect, Open
from coordinator.core.events import Finding, Inspected, Opened
from coordinator.wire.inputs import ReduceInput
from coordinator.wire.merkle import MerkleTree
from coordinator.wire.openings import (
    OpenedInput,
    OpeningNote,
    Refutation,
    drawn_leaves,
    leaves_per_voter,
    sibling_places,
)
from dht.errors import PeerError
from peer.numerics.codec import Codec
from peer.numerics.coefficient_check import Sample, fits_norms, follows_rule, is_merged_so, published_form
from peer.numerics.fragments import Partitioning
from peer.numerics.leaves import Leaves, Look, verified_look
from peer.numerics.merge import MergeRule
from peer.numerics.recomputation import Recomputation, Segments
from peer.numerics.reduction import admit, is_measurable, overlaps, segment_inputs
from peer.numerics.robust.plugin_rule import RuleError
from peer.storage.blobs import BlobStore

AUDITED_AT_ONCE = 64  # leaves of a result; each input has up to 16 times as many


class SpotChecker:
    """Opens and inspects leaves for one peer, from the bytes in its store."""

    def __init__(
        self,
        partitioning: Callable[[int, int], Partitioning],
        codecs: tuple[Codec, Codec],
        rule: MergeRule,
        blobs: BlobStore,
    ) -> None:
        """`partitioning` takes a fragment and a number of partitions; `codecs`: of contributions and of results."""
        self._partitioning = partitioning
        self._codecs = codecs
        self._rule = rule
        self._blobs = blobs

    def open(self, action: Open) -> Opened:
        """Open the drawn leaves of these inputs; open none if the bytes of one input are gone."""
        cut = self._partitioning(action.key.fragment, action.partitions)
        leaves = self._leaves(cut, action.partition)
        indices = leaves.covering_all(self._drawn(action, cut, leaves))
        opened = [self._opened(one, leaves, indices) for one in action.inputs]
        whole = tuple(one for one in opened if one is not None)
        if len(whole) < len(opened):
            return Opened(action.key, action.to, None)
        note = OpeningNote(
            group=action.key.roster_id,
            partition=action.partition,
            turn=action.turn,
            seed=action.seed,
            inputs=whole,
        )
        return Opened(action.key, action.to, note)

    def inspect(self, action: Inspect) -> Inspected:
        """Recompute the drawn leaves, or the one that a refutation shows, or all. The first that differs refutes."""
        cut = self._partitioning(action.key.fragment, action.partitions)
        leaves = self._leaves(cut, action.partition)
        if action.whole:
            return self._audit(action, cut, leaves)
        if action.leaf is not None:
            return self._judge(action, cut, leaves, (action.leaf,))
        found = self._judge(action, cut, leaves, self._drawn(action, cut, leaves))
        if found.finding is Finding.CONFIRMED and not self._has_numbers(action, cut):
            return _inspected(action, Finding.DOUBTFUL)
        return found

    def _has_numbers(self, action: Inspect, cut: Partitioning) -> bool:
        """Whether the result decodes to finite numbers. One leaf that does not, drawn or not, voids the round."""
        data = self._blobs.get(action.root)
        return data is not None and is_measurable(data, cut, action.partition, self._codecs[1])

    def _audit(self, action: Inspect, cut: Partitioning, leaves: Leaves) -> Inspected:
        """Check all leaves, a bounded number at a time, and then whether the coefficients follow the rule."""
        found = _inspected(action, Finding.UNOPENED)
        for start in range(0, leaves.count, AUDITED_AT_ONCE):
            chosen = tuple(range(start, min(start + AUDITED_AT_ONCE, leaves.count)))
            found = self._judge(action, cut, leaves, chosen)
            if found.finding is not Finding.CONFIRMED:
                return found
        return found if self._is_merged_so(action, cut) else _inspected(action, Finding.DOUBTFUL)

    def _is_merged_so(self, action: Inspect, cut: Partitioning) -> bool:
        """Whether all inputs are admissible and the coefficients are those that the rule gives for them."""
        own = cut.segment_span(action.partition)
        pieces: list[Tensor] = []
        for one in action.inputs:
            part = self._blobs.get(one.root) or b""
            admitted = admit(part, one.squared_norms[own], cut, action.partition, self._codecs[0])
            if isinstance(admitted, str):
                return False
            pieces.append(admitted.vector)
        segments = segment_inputs(action.inputs, self._rule, cut, action.partition)
        return not action.coefficients or is_merged_so(self._rule, segments, pieces, action.coefficients)

    def _judge(self, action: Inspect, cut: Partitioning, leaves: Leaves, chosen: tuple[int, ...]) -> Inspected:
        look = self._look(action, leaves, chosen)
        tree = self._blobs.tree(action.root)
        if look is None or tree is None:
            return _inspected(action, Finding.UNOPENED)
        if any(len(one.squared_norms) != len(cut.segments) for one in action.inputs):  # no honest reducer takes it
            return _inspected(action, Finding.REFUTED, self._refutation(action, look, chosen[0], tree))
        segments = segment_inputs(action.inputs, self._rule, cut, action.partition)
        merging = Recomputation(self._rule, segments, action.coefficients, len(action.inputs))
        if action.whole and not merging.is_verifiable:
            return _inspected(action, Finding.UNOPENED)
        try:
            wrong = self._first_wrong(action, look, merging)
        except RuleError:  # our own plugin failed, which refutes nothing
            return _inspected(action, Finding.UNOPENED if action.whole else Finding.DOUBTFUL)
        if wrong is not None:
            return _inspected(action, Finding.REFUTED, self._refutation(action, look, wrong, tree))
        doubtful = action.leaf is None and not action.whole and not self._follows_rule(action, look, segments, cut)
        return _inspected(action, Finding.DOUBTFUL if doubtful else Finding.CONFIRMED)

    # -- the leaves to check

    def _leaves(self, cut: Partitioning, partition: int) -> Leaves:
        return Leaves(cut.elements(partition), *self._codecs)

    def _drawn(self, action: Open | Inspect, cut: Partitioning, leaves: Leaves) -> tuple[int, ...]:
        whole_bytes = sum(codec.encoded_bytes(cut.layout.elements) for codec in self._codecs)
        butterfly_bytes = whole_bytes * (action.voters - 1) // action.voters
        count = leaves_per_voter(action.voters, action.members, action.partitions, leaves.bytes_each, butterfly_bytes)
        return drawn_leaves(action.seed, leaves.count, count)

    def _opened(self, one: ReduceInput, leaves: Leaves, indices: Sequence[int]) -> OpenedInput | None:
        """Open leaves of one input from the store; None if its bytes are gone or have another number of leaves."""
        size = leaves.contribution.leaf_bytes
        data, tree = self._blobs.get(one.root), self._blobs.tree(one.root)
        if data is None or tree is None or len(tree.leaves) != leaves.input_count:
            return None
        pieces = tuple(bytes(data[index * size : (index + 1) * size]) for index in indices)
        return OpenedInput(member=one.member, pieces=pieces, siblings=_siblings(tree, indices))

    def _look(self, action: Inspect, leaves: Leaves, chosen: tuple[int, ...]) -> Look | None:
        """Return the verified leaves, opened by others or from our store."""
        indices = leaves.covering_all([leaf for leaf in chosen if leaf < leaves.count])
        shown = {one.member: one for one in action.opened}
        own = [(one.member, self._opened(one, leaves, indices)) for one in action.inputs if one.member not in shown]
        shown.update({member: opened for member, opened in own if opened is not None})
        return verified_look(leaves, chosen, action.inputs, shown)

    # -- the finding

    def _first_wrong(self, action: Inspect, look: Look, merging: Recomputation) -> int | None:
        """Return the first leaf that differs from its recomputation; the first of all if the result is malformed."""
        data = self._blobs.get(action.root)
        if data is None or not self._has_form(merging):
            return look.chosen[0]
        if not merging.is_verifiable:
            return None

        def is_wrong(chosen: tuple[int, ...]) -> bool:
            return merging.leaves(look, chosen) != look.leaves.cut_out(data, chosen)

        if not is_wrong(look.chosen):
            return None
        return next((leaf for leaf in look.chosen if is_wrong((leaf,))), look.chosen[0])

    def _has_form(self, merging: Recomputation) -> bool:
        """Whether the result has as many coefficients as an honest one, in the form of their rule."""
        if len(merging.coefficients) != merging.coefficients_due:
            return False
        inputs = [one for _, one in merging.segments]
        return not merging.coefficients or published_form(self._rule.name, merging.coefficients, inputs)

    def _follows_rule(self, action: Inspect, look: Look, segments: Segments, cut: Partitioning) -> bool:
        """Whether the opened leaves agree with the committed norms and the published coefficients."""
        count = len(action.inputs)
        try:
            vectors = [vector.numpy() for vector in look.vectors(look.chosen)]
        except (
            PeerError
        ):  # no honest reducer takes such an input, but no leaf of this rule can be recomputed to prove it
            return False
        windows = look.leaves.windows(look.chosen)
        samples, first = [], cut.segment_span(action.partition).start
        for index, (span, inputs) in enumerate(segments):
            parts = overlaps(span, windows)
            if parts:
                own = action.coefficients[index * count : (index + 1) * count]
                squares = tuple(one.squared_norms[first + index] for one in action.inputs)
                pieces = [np.concatenate([vector[part] for part in parts]) for vector in vectors]
                samples.append(Sample(pieces, inputs, own, span.stop - span.start, squares))
        if not all(map(fits_norms, samples)):
            return False
        return not action.coefficients or follows_rule(self._rule.name, samples)

    def _refutation(self, action: Inspect, look: Look, leaf: int, tree: MerkleTree) -> Refutation:
        data = self._blobs.get(action.root) or b""
        return Refutation(
            partition=action.partition,
            turn=action.turn,
            result=action.result,
            leaf=leaf,
            inputs=look.alone(leaf),
            piece=look.leaves.cut_out(data, [leaf]),
            siblings=_siblings(tree, [leaf]),
        )


def _siblings(tree: MerkleTree, indices: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(tree.levels[level][index] for level, index in sibling_places(indices, len(tree.leaves)))


def _inspected(action: Inspect, finding: Finding, refutation: Refutation | None = None) -> Inspected:
    place = (action.accuser, action.partition, action.turn, action.result)
    return Inspected(action.key, *place, finding, refutation, action.whole)
