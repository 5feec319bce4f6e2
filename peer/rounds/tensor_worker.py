"""The tensor work that the protocol core asks for: encode, reduce, apply, adopt. One object per peer, no network.

Pure functions do the arithmetic (`peer.numerics.reduction`, `peer.numerics.outer_step`). This class keeps the state
that a round needs between these calls. It runs on one worker thread, so that the event loop, and with it every vote,
never waits behind a large fragment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import structlog
import torch
from torch import Tensor

from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Adopt, Apply, Encode, Included, PartitionResult, Reduce, RoundKey
from coordinator.core.events import Applied, Encoded, Reduced
from coordinator.run.manifest import RunConfig
from coordinator.trust.evidence import OpenedLeaf
from coordinator.wire.messages import COEFFICIENTS_MAX, SQUARED_NORM_MAX
from dht.errors import LocalError, PeerError
from peer.learner.work_counters import Counters
from peer.machine.buffer_pool import BufferPool
from peer.numerics.codec import CODECS, Codec
from peer.numerics.core_pool import ONE_CORE, Cores
from peer.numerics.fragments import Partitioning
from peer.numerics.merge import MergeRule
from peer.numerics.outer_optimizer import OuterState
from peer.numerics.outer_step import AgreedResult, apply_merged, joined, merged_gradients, step_bytes, told_gradients
from peer.numerics.reduction import (
    Contribution,
    ReducedPartition,
    admit,
    encode_contribution,
    measure,
    merge_partition,
    publish,
)
from peer.numerics.robust.plugin_rule import RuleError
from peer.rounds.adoption import Adoption, Snapshot, update_of
from peer.rounds.spot_checks import SpotChecker
from peer.rounds.tensor_proofs import TensorProofChecker
from peer.storage.anchors import Anchors, HeldState
from peer.storage.blobs import BlobStore

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Merged:
    """The merged outer gradient of a group or cell by partition, and the step as other peers are told it."""

    gradients: list[Tensor | None]
    step: bytes


class TensorWorker:
    """Snapshots and applied states by round; anchors; bytes by root."""

    def __init__(self, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor) -> None:
        """`worker` must do one thing at a time, in order; this object closes it."""
        self._config = config
        self._anchors = anchors
        self._blobs = blobs
        self._contribution_codec = CODECS[config.outer.contribution_codec]
        self._result_codec = CODECS[config.outer.result_codec]
        self.proof_checker = TensorProofChecker(anchors.layouts, config.outer)
        self.rule = self.proof_checker.rule
        self.residues: dict[int, Tensor] = {}  # with error feedback, per fragment; starts empty in every process
        self.snapshots: dict[RoundKey, Snapshot] = {}  # of the current learner
        self._applied: dict[RoundKey, tuple[OuterState, bytes]] = {}  # with the step as other peers are told it
        self._followed: dict[
            int, tuple[bytes, bytes]
        ] = {}  # per fragment, the last step told to us, by its certificate
        self._worker = worker
        self.cores: Cores = ONE_CORE  # the cores that it may keep busy; closed with it
        self._room = BufferPool(2 if config.outer.momentum else 1)  # for the anchor, and the momentum
        self._partitioning = lru_cache(maxsize=256)(self._make_partitioning)
        codecs = (self._contribution_codec, self._result_codec)
        self.inspector = SpotChecker(self._partitioning, codecs, self.rule, blobs)

    @property
    def leaf_bytes(self) -> tuple[int, int]:
        """Merkle leaf sizes of contributions and of results."""
        return self._contribution_codec.leaf_bytes, self._result_codec.leaf_bytes

    @property
    def payload_bytes_max(self) -> int:
        """Length of the longest possible part or result: a whole fragment, reduced by one peer."""
        elements = max(layout.elements for layout in self._anchors.layouts)
        return max(codec.encoded_bytes(elements) for codec in (self._contribution_codec, self._result_codec))

    def submit(self, work: Callable[[], Answer]) -> asyncio.Future[Answer]:
        """Run `work` on the worker thread, after everything submitted before."""
        return asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Submit `work` and wait for its result."""
        return await self.submit(work)

    def use(self, threads: int) -> None:
        """Keep this many cores busy at most, after everything submitted before."""

        def change() -> None:
            before, self.cores = self.cores, Cores(threads)
            before.close()

        self.submit(change)

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)
        self.cores.close()

    def _make_partitioning(self, fragment: int, partitions: int) -> Partitioning:
        return Partitioning.of(self._anchors.layouts[fragment], partitions)

    # -- steps of a round; all run on the worker

    def encode(self, action: Encode, vector: Tensor, counters: Counters) -> Encoded:
        """Encode the outer gradient Θ - θ of a snapshot; the parts wait in the blob store."""
        partitioning = self._partitioning(action.key.fragment, action.partitions)
        anchor, residue = self._anchors.current(action.key.fragment).anchor, self.residues.get(action.key.fragment)

        def gradient(span: slice) -> Tensor:
            difference = anchor[span] - vector[span]
            return difference if residue is None else difference.add_(residue[span])

        left = torch.empty_like(vector) if self._config.outer.error_feedback else None
        contribution = self._encode(gradient, partitioning, left)
        self.snapshots[action.key] = Snapshot(vector, counters, left)
        return Encoded(
            action.key,
            counters.tokens,
            counters.steps,
            max(counters.window_first, 0),
            counters.window_count,
            contribution.part_roots,
            contribution.squared_norms,
        )

    def _encode(
        self, gradient: Callable[[slice], Tensor], partitioning: Partitioning, left: Tensor | None = None
    ) -> Contribution:
        contribution = encode_contribution(gradient, partitioning, self._contribution_codec, left, self.cores)
        for tree, part in zip(contribution.trees, contribution.parts, strict=True):
            self._blobs.put(part, tree)
        return contribution

    def encode_merged(self, action: Encode) -> Encoded | None:
        """Encode the merged result of a cell (docs/adr/0011); None if the bytes of a result are gone or do not decode.

        Also None if hostile members have made it longer than a contribution may be; its tensors are cut differently one
        level up. Tokens and steps are zero here: the core knows whose work it is.
        """
        assert action.merged is not None
        merged = self._merged(action.merged)
        if merged is None:
            return None
        whole = joined(merged.gradients, self._partitioning(action.key.fragment, len(merged.gradients)))
        partitioning = self._partitioning(action.key.fragment, action.partitions)
        try:
            contribution = self._encode(whole.__getitem__, partitioning)
        except LocalError as error:
            log.warning("cell_not_brought", fragment=action.key.fragment, reason=str(error))
            return None
        return Encoded(action.key, 0, 0, 0, 0, contribution.part_roots, contribution.squared_norms)

    def reduce(self, action: Reduce) -> Reduced:
        """Merge one partition from the admissible inputs; no root if there are too few."""
        partitioning = self._partitioning(action.key.fragment, action.partitions)
        own = partitioning.segment_span(action.partition)
        part = (action.key.fragment, action.partitions, action.partition)
        garbage: list[tuple[int, OpenedLeaf]] = []
        vectors: dict[int, Tensor] = {}
        known = [
            (one, data)
            for one in action.inputs
            if (data := self._blobs.get(one.root)) is not None and len(one.squared_norms) == len(partitioning.segments)
        ]
        codec = self._contribution_codec
        found = self.cores.each(
            lambda pair: admit(pair[1], pair[0].squared_norms[own], partitioning, action.partition, codec), known
        )
        for (one, data), admitted in zip(known, found, strict=True):
            if not isinstance(admitted, str):
                vectors[one.member] = admitted.vector
            elif (leaf := self.proof_checker.find(part, data)) is not None:
                garbage.append((one.member, leaf))
        merged = _reduced(action, vectors, self.rule, partitioning, self._result_codec, self.cores)
        if merged is None:
            return Reduced(action.key, action.partition, action.turn, None, (), garbage=tuple(garbage))
        self._blobs.put(merged.data, merged.tree)
        return Reduced(
            action.key,
            action.partition,
            action.turn,
            merged.root,
            merged.included,
            merged.coefficients if len(merged.coefficients) <= COEFFICIENTS_MAX else (),
            merged.squared_norms,
            merged.encoding_error,
            tuple(garbage),
        )

    def apply(self, action: Apply) -> Applied | None:
        """Take the outer step without installing it; None if a result is gone or malformed, or an input malformed."""
        merged = self._merged(action)
        if merged is None:
            return None
        fragment = action.key.fragment
        rates = (self._config.outer.learning_rate, self._config.outer.momentum)
        partitioning = self._partitioning(fragment, len(merged.gradients))
        state = apply_merged(
            self._anchors.current(fragment), merged.gradients, partitioning, rates, self._room.vector, self.cores
        )
        self._applied[action.key] = state, merged.step
        return Applied(action.key, state.digest_on(self.cores))

    def _merged(self, action: Apply) -> _Merged | None:
        """Decode the merged gradients of a round; None as in `apply`."""
        partitioning = self._partitioning(action.key.fragment, len(action.results))
        included = {member for result in action.results if result is not None for member in result.included}
        if any(len(action.inputs[member].squared_norms) != len(partitioning.segments) for member in included):
            return None
        parts = [b"" if result is None else self._blobs.get(result.root) for result in action.results]

        results, codec = action.results, self._result_codec
        held = self.cores.each(lambda at: _held(results[at], parts[at], partitioning, at, codec), range(len(parts)))
        if any(one is None and result is not None for one, result in zip(held, results, strict=True)):
            return None
        gradients, scales = merged_gradients(partitioning, held, action.weighed, self.rule)
        return _Merged(gradients, b"".join([scales.astype("<f4").tobytes(), *(part or b"" for part in parts)]))

    # -- rounds that we missed

    def step_bytes(self, certificate: Certificate) -> int:
        """Return the length in bytes of the step that led to this version."""
        return step_bytes(*self._told(certificate))

    def follow(self, certificate: Certificate, step: bytes, held: HeldState) -> HeldState | None:
        """Take the step that led from this state to the certified one; None unless it leads exactly there."""
        if held.digest != certificate.outcome.parent:
            return None
        partitioning, void, codec = self._told(certificate)
        rates = (self._config.outer.learning_rate, self._config.outer.momentum)
        with np.errstate(all="ignore"):  # a liar may send numbers that overflow
            try:
                gradients = told_gradients(memoryview(step), partitioning, void, codec)
            except PeerError:
                return None
            state = apply_merged(held.state, gradients, partitioning, rates)
        if state.digest != certificate.state or not state.is_finite:
            return None
        self._followed[certificate.fragment] = certificate.digest, step  # to pass it on to others
        return HeldState(certificate.digest, state)

    def _told(self, certificate: Certificate) -> tuple[Partitioning, set[int], Codec]:
        partitions = certificate.outcome.partitions
        void = {partition for partition, result in enumerate(partitions) if result is None}
        return self._partitioning(certificate.fragment, len(partitions)), void, self._result_codec

    # -- after a round

    def adopt(self, action: Adopt, fetched: OuterState | None) -> Adoption:
        """Install the certified state, which is the applied one or `fetched`; return how the learner adopts it."""
        fragment = action.certificate.fragment
        unknown, followed = (None, b""), self._followed.pop(fragment, (b"", b""))
        told = followed[1] if followed[0] == action.certificate.digest else b""
        state, step = (fetched, told) if action.applied is None else self._applied.get(action.applied, unknown)
        if state is None:
            raise LocalError(f"the state of fragment {fragment} to adopt is not here")
        old = self._anchors.current(fragment).anchor
        self._anchors.install(fragment, action.certificate.digest, state, step)
        snapshot = None
        if isinstance(action.ours, Included):
            snapshot = self.snapshots.get(action.ours.snapshot)
            self._leave_residue(fragment, action.ours.counted, None if snapshot is None else snapshot.residue)
        partitioning = self._partitioning(fragment, max(1, len(action.frozen)))
        update = update_of(action, old, state.anchor, snapshot, self._config.outer, partitioning)
        return Adoption(fragment, state.anchor, update)

    def _leave_residue(self, fragment: int, counted: Sequence[bool], left: Tensor | None) -> None:
        """Keep what the encoding cut off our included contribution, for the next one (design §6.2 step 10)."""
        if left is None:
            return
        residue = self.residues.setdefault(fragment, torch.zeros_like(left))
        partitioning = self._partitioning(fragment, len(counted))
        for partition, ours in enumerate(counted):
            if ours:
                span = partitioning.span(partition)
                residue[span] = left[span]

    def discard(self, key: RoundKey) -> None:
        """Drop what was kept for a round that is over."""
        self.snapshots.pop(key, None)
        self._applied.pop(key, None)


def _reduced(
    action: Reduce,
    vectors: Mapping[int, Tensor],
    rule: MergeRule,
    partitioning: Partitioning,
    codec: Codec,
    cores: Cores,
) -> ReducedPartition | None:
    """Merge one partition; None with too few admissible inputs, or if the rule gives no result that members accept."""
    members = {one.member: one for one in action.weighed(vectors.keys())}
    if len(vectors) < action.inputs_min or not any(members[member].weight > 0 for member in vectors):
        return None
    used = cores if rule.function is None else ONE_CORE  # a plugin's rule may not be safe with threads
    try:
        vector = merge_partition(vectors, members, rule, partitioning, action.partition, used)
    except RuleError as error:  # of our own plugin: the partition keeps its values, and nobody is blamed
        log.error("merge_failed", rule=rule.name, reason=str(error))
        return None
    merged = publish(vector, partitioning, action.partition, codec, cores)
    return merged if max(merged.squared_norms, default=0.0) <= SQUARED_NORM_MAX else None


def _held(
    result: PartitionResult | None, data: bytes | None, partitioning: Partitioning, partition: int, codec: Codec
) -> AgreedResult | None:
    """Decode one result; None if there is no result, its bytes are gone, or they are inadmissible."""
    if result is None:
        return None
    measured = "gone" if data is None else measure(data, partitioning, partition, codec)
    return None if isinstance(measured, str) else AgreedResult(measured, result.included)
