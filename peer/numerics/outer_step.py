"""Every member's use of a round's results: joins the partitions and takes the outer step (design §6.2 step 9).

No I/O. Partitions, segments and members are numbered as in `peer.numerics.reduction`, which makes and admits what is
joined here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dht.errors import PeerError
from peer.machine.buffer_pool import new_vector
from peer.numerics.codec import Buffer, Codec
from peer.numerics.core_pool import ONE_CORE, Cores
from peer.numerics.fragments import FLOAT_BYTES, Partitioning
from peer.numerics.merge import MergeRule, direction_scale, lower_weighted_median
from peer.numerics.outer_optimizer import OuterState, SpentMomentum, descend, outer_step
from peer.numerics.reduction import Admitted, Member
from peer.numerics.robust.segments import TensorInputs, tensor_radius
from peer.numerics.robust.stack import Singles

Weighed = Callable[[Collection[int]], Sequence[Member]]
"""Members of the input set in order, weighted for a sum of just these, since each weight depends on the others."""


@dataclass(frozen=True, slots=True)
class AgreedResult:
    """A reduced partition that all members agree on, and the members included in it."""

    admitted: Admitted
    included: tuple[int, ...]


def merged_gradients(
    partitioning: Partitioning, results: Sequence[AgreedResult | None], weighed: Weighed, rule: MergeRule
) -> tuple[list[Tensor | None], Singles]:
    """Return the merged outer gradient by partition, None where it is void, and the factor of each tensor.

    The factor sets a tensor's length; the vectors of `results` are scaled in place. A length counts the members that a
    live partition of the tensor includes, weighted for just these: a reducer's omissions must not make the heavy
    members the majority of the rest (docs/adr/0046). Lengths of merged directions are measured here and not taken from
    reducers: `squared_norm` is the same on every machine, and a reducer cannot tell two members two numbers.
    """
    scales = np.ones(len(partitioning.layout.tensors), np.float32)
    found = _found_norms(partitioning, results)
    for index, tensor in enumerate(partitioning.layout.tensors):
        if rule.is_directional(tensor):
            scales[index] = _tensor_scale(index, partitioning, (results, found), weighed, rule)
    gradients = [
        None if one is None else _scaled(one.admitted.vector, scales, partitioning, partition)
        for partition, one in enumerate(results)
    ]
    return gradients, scales


def joined(gradients: Sequence[Tensor | None], partitioning: Partitioning) -> Tensor:
    """Return the merged outer gradient in one piece, float32[elements]; void partitions are zero."""
    return torch.cat([torch.zeros(partitioning.elements(j)) if own is None else own for j, own in enumerate(gradients)])


def step_bytes(partitioning: Partitioning, void: AbstractSet[int], codec: Codec) -> int:
    """Return the length of a step in bytes: a float32 for each tensor, then the encoded results of live partitions."""
    live = (partition for partition in range(partitioning.partitions) if partition not in void)
    sizes = (codec.encoded_bytes(partitioning.elements(partition)) for partition in live)
    return FLOAT_BYTES * len(partitioning.layout.tensors) + sum(sizes)


def told_gradients(
    told: Buffer, partitioning: Partitioning, void: AbstractSet[int], codec: Codec
) -> list[Tensor | None]:
    """Decode a step told by a peer: the merged outer gradient by partition; raises PeerError if it does not decode."""
    start = FLOAT_BYTES * len(partitioning.layout.tensors)
    scales = np.frombuffer(told[:start], "<f4").astype(np.float32)
    if not np.isfinite(scales).all():
        raise PeerError("the step gives a tensor a length that is not finite")
    gradients: list[Tensor | None] = []
    for partition in range(partitioning.partitions):
        elements = partitioning.elements(partition)
        stop = start + codec.encoded_bytes(elements) * (partition not in void)
        own = None if partition in void else codec.decode(told[start:stop], elements)
        gradients.append(None if own is None else _scaled(own, scales, partitioning, partition))
        start = stop
    return gradients


def apply_merged(
    state: OuterState,
    gradients: Sequence[Tensor | None],
    partitioning: Partitioning,
    rates: tuple[float, float],
    vector: Callable[[int], Tensor] = new_vector,
    cores: Cores = ONE_CORE,
) -> OuterState:
    """Take the outer step with `rates` = (η, μ), by partition; `vector` allocates that many elements.

    A partition without a gradient is void and frozen: its anchor stays bit for bit, and so does a momentum that is
    kept. With μ = 0 the momentum is zero there.
    """
    elements, spans = partitioning.layout.elements, partitioning.spans
    anchor, momentum = vector(elements), vector(elements) if rates[1] else None

    def step(partition: int) -> None:
        span, gradient = spans[partition], gradients[partition]
        if gradient is None:
            anchor[span] = state.anchor[span]
        elif momentum is None:
            descend(anchor[span], state.anchor[span], gradient, rates[0])
        else:
            own = OuterState(state.anchor[span], state.velocity[span])
            outer_step(own, gradient, *rates, out=OuterState(anchor[span], momentum[span]))
        if gradient is None and momentum is not None:
            momentum[span] = state.velocity[span]

    cores.each(step, range(partitioning.partitions))
    if momentum is not None:
        return OuterState(anchor, momentum)
    spent = (span.stop - span.start if one is None else one for span, one in zip(spans, gradients, strict=True))
    return OuterState(anchor, SpentMomentum.of(spent, cores))


def _scaled(vector: Tensor, scales: Singles, partitioning: Partitioning, partition: int) -> Tensor:
    """Scale in place; a tensor whose scale is one keeps its bits."""
    first = partitioning.bounds[partition]
    for segment in partitioning.segments[partitioning.segment_span(partition)]:
        piece = vector[segment.start - first : segment.stop - first].numpy()
        piece *= scales[segment.tensor]
    return vector


def _tensor_scale(
    tensor: int,
    partitioning: Partitioning,
    held: tuple[Sequence[AgreedResult | None], Sequence[float]],
    weighed: Weighed,
    rule: MergeRule,
) -> np.float32:
    """Return the factor that gives a tensor's merged direction its length: `tensor_radius` of the inputs' norms.

    A frozen segment counts with the inputs' weighted median: the live ones get the share of the squared length that
    they hold in the median input. (Not the median itself: a mean of nearly orthogonal unit vectors is shorter.) Sums
    are exact and rounded once, because the result of `sum` over floats depends on the version of Python.
    """
    results, found = held
    own = [(at, segment) for at, segment in enumerate(partitioning.segments) if segment.tensor == tensor]
    live = [(at, segment) for at, segment in own if results[segment.partition] is not None]
    kept = [result for _, segment in own if (result := results[segment.partition]) is not None]
    counted = weighed({index for result in kept for index in result.included})
    weights = [member.weight for member in counted]
    squares = [math.fsum(member.squared_norms[at] for at, _ in own) for member in counted]
    share = 1.0
    if len(live) < len(own):
        living = [math.fsum(member.squared_norms[at] for at, _ in live) for member in counted]
        shares = [part / square if square > 0 else 0.0 for part, square in zip(living, squares, strict=True)]
        share = lower_weighted_median(
            shares, [w if square > 0 else 0.0 for w, square in zip(weights, squares, strict=True)]
        )
    norms = tuple(math.sqrt(square) for square in squares)
    radius = tensor_radius(rule.name, TensorInputs(norms, tuple(weights), embedding=False)) if counted else 0.0
    squared_length = math.fsum(found[at] for at, _ in live)
    return direction_scale(radius, squared_length, share)


def _found_norms(partitioning: Partitioning, results: Sequence[AgreedResult | None]) -> list[float]:
    """Return the squared norms per segment as this member measured them, 0 where there is no result."""
    found: list[float] = []
    for partition, result in enumerate(results):
        own = partitioning.segment_span(partition)
        found += [0.0] * (own.stop - own.start) if result is None else result.admitted.squared_norms
    return found
