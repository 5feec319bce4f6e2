"""Forged merges, which break the run's rule, and which a hostile reducer signs like honest ones.

If the reducer publishes other coefficients, its result's bytes match them, and members detect it by the rule itself
(docs/adr/0034). Noise, an input longer than committed, and bytes that are not numbers show in the bytes: any opened
leaf convicts the reducer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from coordinator.core.events import Reduced
from peer.numerics.codec import Codec
from peer.numerics.merge import combine
from peer.numerics.recomputation import Segments
from peer.numerics.reduction import merge_plan
from peer.numerics.robust.stack import Floats
from peer.storage.blobs import BlobStore

NOISE_SHARE = 0.1  # of the honest result's length
OWN_FACTOR = 10.0  # by which a reducer lengthens its own part
NO_NUMBER = b"\xff"  # no codec decodes it to finite numbers


@dataclass(frozen=True, slots=True)
class Merged:
    """The merge of a partition, float32[its elements], and its inputs: one vector for each included member.

    `own` is the index of the reducer's vector, None if it is not included. A `vector` with values that are not finite
    stands for bytes that cannot be decoded.
    """

    rule: str
    segments: Segments
    vectors: Sequence[Tensor]
    coefficients: tuple[float, ...]
    vector: Tensor
    own: int | None = None

    def with_coefficients(self, change: Callable[[Floats], Floats]) -> Merged:
        """Return the merge with coefficients changed segment by segment; negative results of `change` become 0."""
        count = len(self.vectors)
        changed: list[float] = []
        for at in range(len(self.segments)):
            lie = np.maximum(change(np.array(self.coefficients[at * count : (at + 1) * count])), 0)
            changed += (lie / (lie.sum() or 1.0)).astype(np.float32).tolist()
        return replace(self, coefficients=tuple(changed)).combined()

    def combined(self) -> Merged:
        """Return the merge whose vector follows from its vectors and coefficients."""
        plan = merge_plan(self.rule, self.segments, self.coefficients, len(self.vectors))
        return replace(self, vector=combine(self.vectors, *plan.windows([slice(0, len(self.vector))])))

    def with_longer_own(self) -> Merged:
        """Return the merge with the reducer's own part OWN_FACTOR times as long; the coefficients do not show it."""
        longer = [OWN_FACTOR * vector if at == self.own else vector for at, vector in enumerate(self.vectors)]
        return replace(self, vectors=longer).combined()

    def with_noise(self) -> Merged:
        """Return the merge with noise of NOISE_SHARE of its length, different for every vector."""
        values = self.vector.numpy()
        generator = np.random.default_rng(int(np.abs(values[:64]).sum() * 1e6) % 2**32)
        spread = np.float32(NOISE_SHARE * float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))))
        noise = generator.standard_normal(len(values), np.float32) * spread
        return replace(self, vector=self.vector + torch.from_numpy(noise))

    def without_numbers(self) -> Merged:
        """Return the merge with a vector that cannot be decoded."""
        return replace(self, vector=torch.full_like(self.vector, torch.nan))

    def encoded(self, codec: Codec) -> bytes:
        """Return the encoded bytes, with no sign of the forgery."""
        if bool(self.vector.isfinite().all()):
            return codec.encode(self.vector)
        return NO_NUMBER * codec.encoded_bytes(len(self.vector))


def _equal(coefficients: Floats) -> Floats:
    """Return equal coefficients: a plain mean, which excludes no outlier."""
    return np.ones_like(coefficients)


def _favourite(coefficients: Floats) -> Floats:
    """Return coefficients in which the member with the least gets as much as all others together."""
    raised = coefficients.copy()
    raised[int(np.argmin(coefficients))] = coefficients.sum()
    return raised


Forgery = Callable[[Merged], Merged]

FORGERIES: Mapping[str, Forgery] = MappingProxyType(
    {
        "mean_results": lambda merged: merged.with_coefficients(_equal),
        "raised_results": lambda merged: merged.with_coefficients(_favourite),
        "noisy_results": Merged.with_noise,
        "selfish_results": Merged.with_longer_own,
        "garbage_results": Merged.without_numbers,
    }
)
"""Forgeries by their `--attack` names."""


def falsified(reduced: Reduced, elements: int, codec: Codec, blobs: BlobStore, leaves: int | None = None) -> Reduced:
    """Return the negative of the merge, `elements` long, with unchanged norms and coefficients.

    With `leaves`, only that many first leaves are negated.
    """
    data = None if reduced.root is None else blobs.get(reduced.root)
    if data is None:
        return reduced
    end = len(data) if leaves is None else leaves * codec.leaf_bytes
    negative = codec.encode(-codec.decode(data, elements))
    return replace(reduced, root=blobs.add(negative[:end] + data[end:], codec.leaf_bytes))
