"""Steps of bfloat16 parameters: in float32, a few tensors at a time, rounded stochastically on the way back.

Large matrices with an 8-bit state are stepped some rows at a time (`peer.learner.optimizers.by_rows`). A training
step is often smaller than half the distance between two bfloat16 numbers, so rounding to the nearest would lose it.
If the odds of rounding up match its size, it is kept on average (Gupta et al. 1502.02551).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from peer.learner.optimizers.by_rows import PIECE_ELEMENTS, by_rows, is_cut

BATCH_ELEMENTS = PIECE_ELEMENTS  # worked on at once; a larger tensor is alone in its batch
BYTES_PER_ELEMENT = 12  # of such a batch: value, gradient and noise
_LOW_BITS = 16  # of a float32, which a bfloat16 does not have


class RoundedSteps:
    """Float32 stand-ins for bfloat16 parameters, for an optimizer; they hold memory during `step` only."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = tuple(parameters)
        self.stand_ins = [nn.Parameter(_nothing(one)) for one in parameters]

    def step(self, optimizer: Optimizer, scale: Tensor, seed: int) -> None:
        """Make one step of the optimizer on the gradients times `scale`; `seed` determines the rounding."""
        generator = torch.Generator(self._parameters[0].device).manual_seed(seed)
        for batch in self._batches():
            (parameter, stand_in), *_ = batch
            if is_cut(optimizer, stand_in):
                for rows in by_rows(optimizer, stand_in):
                    self._step(optimizer, [(parameter, stand_in, rows)], scale, generator)
            else:
                self._step(optimizer, [(*pair, slice(None)) for pair in batch], scale, generator)

    def _step(
        self,
        optimizer: Optimizer,
        batch: Sequence[tuple[nn.Parameter, nn.Parameter, slice]],
        scale: Tensor,
        generator: torch.Generator,
    ) -> None:
        """Step the given rows of each parameter."""
        for parameter, stand_in, rows in batch:
            assert parameter.grad is not None
            stand_in.data = parameter.detach()[rows].float()
            stand_in.grad = parameter.grad[rows].float().mul_(scale)
        optimizer.step()
        for parameter, stand_in, rows in batch:
            stand_in.grad = None
            parameter.detach()[rows].copy_(round_stochastically(stand_in.detach(), generator))
            stand_in.data = _nothing(parameter)

    def _batches(self) -> list[list[tuple[nn.Parameter, nn.Parameter]]]:
        batches: list[list[tuple[nn.Parameter, nn.Parameter]]] = []
        room = 0
        for pair in zip(self._parameters, self.stand_ins, strict=True):
            if pair[0].numel() > room:
                batches.append([])
                room = BATCH_ELEMENTS
            batches[-1].append(pair)
            room -= pair[0].numel()
        return batches


def round_stochastically(values: Tensor, generator: torch.Generator) -> Tensor:
    """Round float32 to bfloat16, up or down with odds that keep the mean exact; overwrites `values`."""
    bits = values.contiguous().view(torch.int32)
    noise = torch.randint(1 << _LOW_BITS, bits.shape, generator=generator, dtype=torch.int32, device=bits.device)
    return bits.add_(noise).bitwise_and_(-(1 << _LOW_BITS)).view(torch.float32).bfloat16()


def _nothing(parameter: Tensor) -> Tensor:
    """Return a tensor of this shape and device that takes no memory."""
    return torch.zeros(1, device=parameter.device).expand(parameter.shape)
