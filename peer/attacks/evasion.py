"""A reducer that opens what it made up to those alone who draw none of it (docs/adr/0055).

In processes only: members of a lab have their bytes in one store, so nobody there depends on what a reducer opens.
"""

from __future__ import annotations

from concurrent.futures import Executor

from coordinator.core.actions import Open, Reduce, RoundKey
from coordinator.core.events import Opened, Reduced
from coordinator.run.manifest import RunConfig
from peer.attacks.forgery import falsified
from peer.numerics.leaves import Leaves
from peer.rounds.spot_checks import SpotChecker
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors
from peer.storage.blobs import BlobStore

EVASIVE = "evasive_results"
FALSE_SHARE = 0.1  # of a result's leaves, at least one: its first


class EvasiveWork(TensorWorker):
    """Contributes honestly; a tenth of each merge is the negative of what it should be."""

    def __init__(self, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._evader = _Evader(self._partitioning, (self._contribution_codec, self._result_codec), self.rule, blobs)
        self._evader.reduced = set()
        self.inspector = self._evader

    def reduce(self, action: Reduce) -> Reduced:
        """As an honest peer, but for the first leaves, beside norms that fit these as well."""
        elements = self._partitioning(action.key.fragment, action.partitions).elements(action.partition)
        codec = self._result_codec
        self._evader.reduced.add((action.key, action.partition))
        leaves = _false_leaves(Leaves(elements, self._contribution_codec, codec))
        return falsified(super().reduce(action), elements, codec, self._blobs, leaves)

    def discard(self, key: RoundKey) -> None:
        """A round is over."""
        super().discard(key)
        self._evader.reduced = {place for place in self._evader.reduced if place[0] != key}


class _Evader(SpotChecker):
    """Opens neither the others' inputs nor its own where a drawn leaf would show what it has made up."""

    reduced: set[tuple[RoundKey, int]]  # rounds, and the partitions that it makes up there

    def open(self, action: Open) -> Opened:
        cut = self._partitioning(action.key.fragment, action.partitions)
        leaves = self._leaves(cut, action.partition)
        is_seen = self._drawn(action, cut, leaves)[0] < _false_leaves(leaves)
        if is_seen and (action.key, action.partition) in self.reduced:
            return Opened(action.key, action.to, None)
        return super().open(action)


def _false_leaves(leaves: Leaves) -> int:
    return max(1, int(FALSE_SHARE * leaves.count))
