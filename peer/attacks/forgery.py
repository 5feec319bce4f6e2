"""Other merges than the run's rule gives, which a hostile reducer signs as if nothing were.

With other coefficients, which it publishes, a result's bytes are what they say: members find out by the rule itself
(docs/adr/0034). Noise, an input that is longer than it was committed, and bytes that are no numbers are in the bytes,
and convict their reducer by any opened leaf.
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

NOISE_SHARE = 0.1  # of the length that the honest result has
OWN_FACTOR = 10.0  # by which a reducer's own part gets longer
NO_NUMBER = b"\xff"  # of which no codec makes finite numbers


@dataclass(frozen=True, slots=True)
class Merged:
    """The merge of a partition, float32[its elements], and what it was made of: one vector for each included member.

    `own`: the place of the reducer's among them, None if it is not included. A `vector` with values that are not finite
    stands for bytes that decode to nothing.
    """

    rule: str
    segments: Segments
    vectors: Sequence[Tensor]
    coefficients: tuple[float, ...]
    vector: Tensor
    own: int | None = None

    def with_coefficients(self, change: Callable[[Floats], Floats]) -> Merged:
        """Combined with other coefficients, segment by segment; of what `change` makes of them, negative ones are 0."""
        count = len(self.vectors)
        changed: list[float] = []
        for at in range(len(self.segments)):
            lie = np.maximum(change(np.array(self.coefficients[at * count : (at + 1) * count])), 0)
            changed += (lie / (lie.sum() or 1.0)).astype(np.float32).tolist()
        return replace(self, coefficients=tuple(changed)).combined()

    def combined(self) -> Merged:
        """With the vector that these coefficients make of these vectors."""
        plan = merge_plan(self.rule, self.segments, self.coefficients, len(self.vectors))
        return replace(self, vector=combine(self.vectors, *plan.windows([slice(0, len(self.vector))])))

    def with_longer_own(self) -> Merged:
        """With the reducer's own part OWN_FACTOR times as long, beside coefficients that say nothing of it."""
        longer = [OWN_FACTOR * vector if at == self.own else vector for at, vector in enumerate(self.vectors)]
        return replace(self, vectors=longer).combined()

    def with_noise(self) -> Merged:
        """With noise of NOISE_SHARE of its length, another for every vector."""
        values = self.vector.numpy()
        generator = np.random.default_rng(int(np.abs(values[:64]).sum() * 1e6) % 2**32)
        spread = np.float32(NOISE_SHARE * float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))))
        noise = generator.standard_normal(len(values), np.float32) * spread
        return replace(self, vector=self.vector + torch.from_numpy(noise))

    def without_numbers(self) -> Merged:
        """With nothing in it that could be decoded."""
        return replace(self, vector=torch.full_like(self.vector, torch.nan))

    def encoded(self, codec: Codec) -> bytes:
        """Its bytes, as if nothing were."""
        if bool(self.vector.isfinite().all()):
            return codec.encode(self.vector)
        return NO_NUMBER * codec.encoded_bytes(len(self.vector))


def _equal(coefficients: Floats) -> Floats:
    """A plain mean, which leaves out nobody who is far away."""
    return np.ones_like(coefficients)


def _favourite(coefficients: Floats) -> Floats:
    """The member with the least gets as much as all others together."""
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
"""By the name that `--attack` gives them."""


def falsified(reduced: Reduced, elements: int, codec: Codec, blobs: BlobStore, leaves: int | None = None) -> Reduced:
    """The negative of what was merged, `elements` long, beside norms and coefficients as if nothing were.

    With `leaves` of its first leaves alone.
    """
    data = None if reduced.root is None else blobs.get(reduced.root)
    if data is None:
        return reduced
    end = len(data) if leaves is None else leaves * codec.leaf_bytes
    negative = codec.encode(-codec.decode(data, elements))
    return replace(reduced, root=blobs.add(negative[:end] + data[end:], codec.leaf_bytes))
