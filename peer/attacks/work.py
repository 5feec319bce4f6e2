"""The tensor work of a peer that attacks its run: its contributions, its merges, and its verdicts on other results.

Such a peer sees only its own work, so the attacks of `peer.attacks.omniscient` are weak here. In a lab they see all
learners: there, `peer.lab.tensors` applies them.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from torch import Tensor

from coordinator.adversary.mischief import Mischief
from coordinator.core.actions import Encode, Inspect, Reduce, RoundKey
from coordinator.core.events import Encoded, Inspected, Reduced
from coordinator.run.manifest import RunConfig
from dht.errors import LocalError
from dht.statement import digest_of
from peer.attacks.attack import Attack, Scene
from peer.attacks.forgery import Forgery, Merged, falsified
from peer.attacks.plain import NotANumber
from peer.learner.work_counters import Counters
from peer.numerics.reduction import measure, segment_inputs
from peer.rounds.spot_checks import SpotChecker
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors
from peer.storage.blobs import BlobStore

SEED_ELEMENTS = 64  # of its own work, in which no two peers agree


class HostileWork(TensorWorker):
    """Work that sends the attack's version of its outer gradient, and is honest otherwise."""

    def __init__(self, attack: Attack, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._attack = attack

    def encode(self, action: Encode, vector: Tensor, counters: Counters) -> Encoded:
        """Encode the lie like an honest peer; the truth, if no codec holds the lie."""
        anchor = self._anchors.current(action.key.fragment).anchor
        lie = self._attack.lie(self._scene(action.key, anchor - vector))
        try:
            encoded = super().encode(action, anchor - lie, counters)
        except LocalError:
            return super().encode(action, vector, counters)
        # its own learner continues from its true position
        self.snapshots[action.key] = replace(self.snapshots[action.key], vector=vector)
        return self._attack.commit(encoded, self._blobs, self.leaf_bytes[0])

    def _scene(self, key: RoundKey, own: Tensor) -> Scene:
        seed = digest_of(b"attack", key.roster_id, own[:SEED_ELEMENTS].numpy().tobytes())[:7]
        return Scene(
            own=own,
            honest=lambda: {"me": own},
            attackers=1,
            seed=int.from_bytes(seed, "big"),
            fragment=key.fragment,
            state=self._anchors.current(key.fragment),
            rates=(self._config.outer.learning_rate, self._config.outer.momentum),
            merge=self.rule,
        )


class MischievousWork(TensorWorker):
    """Work that commits, merges and inspects as its mischief says."""

    def __init__(
        self, mischief: Mischief, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor
    ) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._mischief = mischief
        codecs = (self._contribution_codec, self._result_codec)
        self.inspector = _Complainer(self._partitioning, codecs, self.rule, blobs)
        self.inspector.mischief = mischief

    def encode(self, action: Encode, vector: Tensor, counters: Counters) -> Encoded:
        """Encode the true work, unless the mischief garbles it."""
        return self._mischief.encodes(super().encode(action, vector, counters), self._garbled)

    def _garbled(self, encoded: Encoded) -> Encoded:
        return NotANumber(1.0).commit(encoded, self._blobs, self.leaf_bytes[0])

    def reduce(self, action: Reduce) -> Reduced:
        """Reduce honestly, or return the negative of the result, signed as usual, if the mischief cheats."""
        reduced = super().reduce(self._mischief.merges(action))
        return self._mischief.reduces(reduced, partial(self._falsified, action))

    def _falsified(self, action: Reduce, reduced: Reduced) -> Reduced:
        elements = self._partitioning(action.key.fragment, action.partitions).elements(action.partition)
        return falsified(reduced, elements, self._result_codec, self._blobs)


class ForgingWork(TensorWorker):
    """Work that contributes honestly, but signs the `forgery` of each merge."""

    def __init__(
        self, forgery: Forgery, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor
    ) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._forgery = forgery
        self._own: dict[RoundKey, tuple[bytes, ...]] = {}

    def encode(self, action: Encode, vector: Tensor, counters: Counters) -> Encoded:
        """Encode like an honest peer, and remember which parts are its own."""
        encoded = super().encode(action, vector, counters)
        self._own[action.key] = encoded.part_roots
        return encoded

    def discard(self, key: RoundKey) -> None:
        """Forget a round that is over."""
        super().discard(key)
        self._own.pop(key, None)

    def reduce(self, action: Reduce) -> Reduced:
        """Reduce like an honest peer, then return the forgery, with norms that fit it if it has any."""
        reduced, codec = super().reduce(action), self._result_codec
        data = None if reduced.root is None else self._blobs.get(reduced.root)
        if data is None or not reduced.coefficients:
            return reduced
        partitioning = self._partitioning(action.key.fragment, action.partitions)
        elements = partitioning.elements(action.partition)
        inputs, own = action.weighed(reduced.included), self._own.get(action.key, ())
        forged = self._forgery(
            Merged(
                self.rule.name,
                segment_inputs(inputs, self.rule, partitioning, action.partition),
                [self._contribution_codec.decode(self._blobs.get(one.root) or b"", elements) for one in inputs],
                reduced.coefficients,
                codec.decode(data, elements),
                next((at for at, one in enumerate(inputs) if one.root in own), None),
            )
        )
        data = forged.encoded(codec)
        measured = measure(data, partitioning, action.partition, codec)
        return replace(
            reduced,
            root=self._blobs.add(data, codec.leaf_bytes),
            coefficients=forged.coefficients,
            squared_norms=reduced.squared_norms if isinstance(measured, str) else measured.squared_norms,
        )


class _Complainer(SpotChecker):
    mischief: Mischief

    def inspect(self, action: Inspect) -> Inspected:
        return self.mischief.inspects(action, super().inspect(action))
