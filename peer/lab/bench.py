"""Versions recomputed from their contributions, as every member of their groups computed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.chain.certificate import Certificate, Outcome
from coordinator.chain.weights import contribution_weight
from coordinator.core.actions import Adopt, Apply, PartitionResult, Reduce, RoundKey
from coordinator.core.events import Encoded
from coordinator.wire.inputs import ReduceInput
from dht.errors import LocalError, UsageError
from peer.lab.lab_context import LabContext
from peer.numerics.outer_optimizer import OuterState
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors


class Bench:
    """A recomputation of versions: it reduces, takes the outer step, compares, and keeps the states in the context."""

    def __init__(self, context: LabContext, genesis: Sequence[bytes]) -> None:
        """`genesis` has the digests of version 0, those of its states."""
        self._context = context
        self._anchors = Anchors(context.layouts, context.genesis)
        self._work = TensorWorker(context.config, self._anchors, context.blobs, context.worker)
        for fragment, (digest, state) in enumerate(zip(genesis, context.genesis, strict=True)):
            self._anchors.install(fragment, digest, state)

    def make(self, certificate: Certificate, encoded: Sequence[Encoded], expected: int) -> None:
        """Recompute a version from all contributions; raises LocalError unless it equals the certified one bit for bit.

        `expected` is the number of members its group would have had with none missing. Raises UsageError if the version
        before it is not here.
        """
        outcome = certificate.outcome
        key = RoundKey(outcome.fragment, outcome.version - 1, outcome.roster_id)
        self._anchors.install(outcome.fragment, outcome.parent, self._parent(outcome))
        apply = Apply(key, (), _inputs(encoded), expected)
        results = tuple(self._result(apply, outcome, at, encoded) for at in range(len(outcome.partitions)))
        applied = self._work.apply(replace(apply, results=results))
        if applied is None or applied.state != certificate.state:
            raise LocalError(f"the state of version {outcome.version} came out differently")
        self._work.adopt(Adopt(certificate, applied=key), None)
        self._work.discard(key)
        self._context.keep(outcome.fragment, certificate.state, self._anchors.current(outcome.fragment))

    def _result(
        self, apply: Apply, outcome: Outcome, partition: int, encoded: Sequence[Encoded]
    ) -> PartitionResult | None:
        merged = outcome.partitions[partition]
        if merged is None:
            return None
        inputs = tuple(one for one in _inputs(encoded, partition) if one.member in merged.included)
        reduced = self._work.reduce(Reduce(apply.key, partition, len(outcome.partitions), 0, inputs, 1, apply.members))
        if reduced.root != merged.root:
            raise LocalError(f"partition {partition} of version {outcome.version} came out differently")
        return PartitionResult(merged.root, merged.included)

    def _parent(self, outcome: Outcome) -> OuterState:
        """Return the state that this version began with: a recent one computed here, or one that a live peer holds."""
        for anchors in (self._anchors, *(one.anchors for one in self._context.active.values())):
            state = anchors.served(outcome.fragment, outcome.parent)
            if state is not None:
                return state
        raise UsageError(f"the tape lacks the version before version {outcome.version} of fragment {outcome.fragment}")


def _inputs(encoded: Sequence[Encoded], partition: int = 0) -> tuple[ReduceInput, ...]:
    """Return all members' contributions, with the roots of one partition."""
    return tuple(
        ReduceInput(at, one.part_roots[partition], contribution_weight(one.tokens, one.steps), one.squared_norms)
        for at, one in enumerate(encoded)
    )
