"""A reducer that opens forged results only to peers whose draw misses the forgery (docs/adr/0055).

It works between processes only: members of a lab share one store of bytes, so none depends on a reducer's openings.
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
FALSE_SHARE = 0.1  # of a result's leaves, at least one, from the first


class EvasiveWork(TensorWorker):
    """Honest contributions, but a tenth of each merge is the negative of the true result."""

    def __init__(self, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._evader = _Evader(self._partitioning, (self._contribution_codec, self._result_codec), self.rule, blobs)
        self._evader.reduced = set()
        self.inspector = self._evader

    def reduce(self, action: Reduce) -> Reduced:
        """Reduce honestly, then negate the first leaves; the squared norms fit both."""
        elements = self._partitioning(action.key.fragment, action.partitions).elements(action.partition)
        codec = self._result_codec
        self._evader.reduced.add((action.key, action.partition))
        leaves = _false_leaves(Leaves(elements, self._contribution_codec, codec))
        return falsified(super().reduce(action), elements, codec, self._blobs, leaves)

    def discard(self, key: RoundKey) -> None:
        """Forget a round that is over."""
        super().discard(key)
        self._evader.reduced = {place for place in self._evader.reduced if place[0] != key}


class _Evader(SpotChecker):
    """A spot checker that opens nothing, not even its own input, where a drawn leaf would expose its forgery."""

    reduced: set[tuple[RoundKey, int]]  # rounds, and the partitions forged in them

    def open(self, action: Open) -> Opened:
        cut = self._partitioning(action.key.fragment, action.partitions)
        leaves = self._leaves(cut, action.partition)
        is_seen = self._drawn(action, cut, leaves)[0] < _false_leaves(leaves)
        if is_seen and (action.key, action.partition) in self.reduced:
            return Opened(action.key, action.to, None)
        return super().open(action)


def _false_leaves(leaves: Leaves) -> int:
    return max(1, int(FALSE_SHARE * leaves.count))
