"""Rounds with real bytes and real signatures, and the evidence against a result with its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from coordinator.chain.weights import weights_of
from coordinator.group.group import Group, InputSet, read_input_set
from coordinator.run.manifest import OuterSpec
from coordinator.trust.evidence import Evidence, false_result, verify
from coordinator.wire.merkle import merkle_tree
from coordinator.wire.openings import OpenedInput, Refutation, sibling_places
from dht.identity import PeerId
from dht.statement import Statement
from peer.numerics.fragments import FragmentLayout, TensorSpec
from peer.numerics.merge_plugin import merge_rule
from peer.numerics.reduction import ReducedPartition
from peer.rounds.tensor_proofs import TensorProofChecker
from tests.coordinator.builders import Club
from tests.peer.merging import contribute
from tests.peer.reducing import Reduction

LAYOUT = FragmentLayout(
    0, (TensorSpec("embedding", (40, 32), embedding=True), TensorSpec("gain", (32,)), TensorSpec("matrix", (300, 32)))
)
MEMBERS = 4
CLUB = Club.of(MEMBERS, real_keys=True)
GROUP = CLUB.group(CLUB.chain(), range(MEMBERS))
PARTITION = 0  # with all kinds of tensors in it


@dataclass(frozen=True)
class Round:
    """Real contributions, committed by real signatures, and their honest merge."""

    outer: OuterSpec
    reduction: Reduction
    inputs: InputSet
    club: Club
    group: Group

    @property
    def proof_checker(self) -> TensorProofChecker:
        return TensorProofChecker([LAYOUT], self.outer)

    def result(self, reduced: ReducedPartition, **changes: object) -> Statement:
        values = {
            "root": reduced.root,
            "included": reduced.included,
            "coefficients": reduced.coefficients,
            "squared_norms": reduced.squared_norms,
            **changes,
        }
        return self.club.result(self.group, self.inputs, PARTITION, **values)

    def shown(self, reduced: ReducedPartition, leaf: int, result: Statement) -> Refutation:
        """Return a leaf of a result with those of its inputs, as a peer that holds all bytes shows it."""
        leaves = self.reduction.leaves
        opened = [
            OpenedInput(member=one.member, pieces=pieces, siblings=siblings)
            for one in self.reduction.inputs
            if one.member in reduced.included
            for pieces, siblings in [self._opened(one.root, leaves.contribution.leaf_bytes, leaves.covering(leaf))]
        ]
        (piece,), siblings = self._opened(reduced.root, leaves.result.leaf_bytes, [leaf])
        return Refutation(
            partition=PARTITION,
            turn=0,
            result=result.digest,
            leaf=leaf,
            inputs=tuple(opened),
            piece=piece,
            siblings=siblings,
        )

    def _opened(
        self, root: bytes, leaf_bytes: int, indices: Iterable[int]
    ) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        data, chosen = self.reduction.blobs.get(root) or b"", list(indices)
        tree = merkle_tree(data, leaf_bytes)
        pieces = tuple(bytes(data[index * leaf_bytes : (index + 1) * leaf_bytes]) for index in chosen)
        places = sibling_places(chosen, len(tree.leaves))
        return pieces, tuple(tree.levels[level][index] for level, index in places)

    def evidence(self, reduced: ReducedPartition, leaf: int, **changes: object) -> Evidence:
        result = self.result(reduced, **changes)
        made = false_result(result, self.inputs.statement, self.shown(reduced, leaf, result))
        assert made is not None
        return made

    def convicted(self, evidence: Evidence) -> PeerId:
        return verify(Evidence.parse(evidence.to_wire()), self.club.rules, self.proof_checker).peer


def round_of(
    outer: OuterSpec,
    vectors: Sequence[torch.Tensor],
    tokens: Sequence[int] = (100, 107, 114, 121),
    club: Club = CLUB,
) -> Round:
    """Return commitments of these contributions, and the reduction of one partition of them."""
    chain = club.chain()
    group = GROUP if club is CLUB else club.group(chain, range(MEMBERS))
    rule, codecs = merge_rule(outer), (outer.contribution_codec, outer.result_codec)
    counters = [(own, 10) for own in tokens]
    weights = weights_of(counters, MEMBERS, range(MEMBERS))
    reduction = Reduction(LAYOUT, vectors, rule, codecs, MEMBERS, PARTITION, weights)
    made = contribute(vectors, reduction.cut, reduction.contribution)
    commits = [
        club.commit(
            member,
            group,
            tokens=own,
            steps=steps,
            codec=outer.contribution_codec,
            part_roots=one.part_roots,
            squared_norms=one.squared_norms,
        )
        for member, (one, (own, steps)) in enumerate(zip(made, counters, strict=True))
    ]
    bundle = club.bundle(group, commits)
    inputs = read_input_set(bundle, group, outer.contribution_codec, chain)
    return Round(outer, reduction, inputs, club, group)
