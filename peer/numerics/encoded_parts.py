"""Vectors as told to other peers: encoded, hashed and measured in spans that fit a core's cache (design §6.2)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from coordinator.wire.merkle import MerkleTree, leaf_digests, tree_of_leaves
from coordinator.wire.messages import SQUARED_NORM_MAX
from peer.numerics.codec import Codec
from peer.numerics.core_pool import Cores
from peer.numerics.fragments import Partitioning
from peer.numerics.merge import squared_norm

SPAN_ELEMENTS = 1 << 16  # encoded at once by one core, at most: 256 KiB
ROUGH_SQUARE_MIN = 1e-30  # on average; the squares of smaller elements lose digits


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """One partition of a contribution, with the squared norms of its segments after decoding."""

    data: bytes
    tree: MerkleTree
    squared_norms: tuple[float, ...]


def encode_parts(
    vector: Callable[[slice], Tensor],
    partitioning: Partitioning,
    partitions: Sequence[int],
    codec: Codec,
    look: Callable[[slice, Tensor, Tensor], None],
    cores: Cores,
) -> list[EncodedPart]:
    """Encode, hash and measure these partitions, span by span on each core, so that a span stays in its cache.

    `look` is called with the slice, the elements and the decoded elements of every span.
    """
    segments, bounds = partitioning.segments, partitioning.bounds
    stops = [segment.stop for segment in segments]
    size = SPAN_ELEMENTS // codec.leaf_elements * codec.leaf_elements  # whole leaves

    def encode(span: slice) -> tuple[bytes, list[bytes], list[tuple[int, float]]]:
        own, norms = vector(span), []
        seen = torch.empty_like(own)
        data = codec.encode(own, seen)
        look(span, own, seen)
        at = bisect_right(stops, span.start)
        while at < len(segments) and segments[at].start < span.stop:
            piece = slice(max(segments[at].start - span.start, 0), segments[at].stop - span.start)
            norms.append((at, told_norm(seen[piece])))
            at += 1
        return data, leaf_digests(data, codec.leaf_bytes), norms

    starts = [range(bounds[one], max(bounds[one + 1], bounds[one] + 1), size) for one in partitions]
    spans = [
        slice(at, min(at + size, bounds[one + 1])) for one, own in zip(partitions, starts, strict=True) for at in own
    ]
    found = iter(cores.each(encode, spans))
    parts = []
    for partition, own in zip(partitions, starts, strict=True):
        data, leaves, norms = zip(*islice(found, len(own)), strict=True)
        totals = [0.0] * len(segments)
        for at, norm in chain.from_iterable(norms):
            totals[at] += norm
        parts.append(
            EncodedPart(
                b"".join(data),
                tree_of_leaves(list(chain.from_iterable(leaves))),
                tuple(totals[partitioning.segment_span(partition)]),
            )
        )
    return parts


def told_norm(piece: Tensor) -> float:
    """Return approximately ‖x‖², the same number on every machine.

    Use it for norms that other peers measure themselves, or check only to a ten-thousandth. It is summed in float32 in
    the order that numpy fixes, which is a hundred times more accurate than that.
    """
    values = piece.numpy()
    with np.errstate(over="ignore", under="ignore"):
        rough = float((values * values).sum())
    return rough if keeps_digits(rough, len(piece)) else squared_norm(piece)


def keeps_digits(rough: float, elements: int) -> bool:
    """Whether no square was too large or too small for float32."""
    return ROUGH_SQUARE_MIN * elements <= rough <= SQUARED_NORM_MAX / 2
