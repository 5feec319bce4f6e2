"""What the others went on with while a learner went its own way, put into its inner optimizer's first moment.

A merge that has a learner's work in it says how far the swarm went (D) while the learner went d. The noise of its own
batches is in d and still in its first moment, which will repeat it; what the others have found is in neither. So the
first moment of AdamW is changed by what would have made D of d, as if it had been averaged, without sending it
(docs/adr/0041; MimeLite 2008.03606 and FedCM 2106.10874 give clients a server's momentum to the same end).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from coordinator.run.manifest import RunConfig

BLOCK_ELEMENTS = 256  # of an 8-bit moment, that share a scale: bitsandbytes'


@dataclass(frozen=True, slots=True)
class Correction:
    """How much of a difference in distance goes into the first moment."""

    share: float
    rate: float  # of the last inner step: that of the next one may become known before or after an adoption
    steps: int  # that the difference took
    late_steps: int  # since then, over which the first moment has faded
    beta1: float
    beta2: float

    @classmethod
    def of(cls, config: RunConfig, rate: float, steps: int, late_steps: int) -> Correction:
        """As the run has it; its `outer.moment_correction` is set."""
        assert config.outer.moment_correction is not None
        inner = config.inner
        return cls(config.outer.moment_correction, rate, steps, late_steps, inner.beta1, inner.beta2)

    @property
    def updates(self) -> float:
        """What a distance is multiplied by to be a difference in one step's update, in units of the rate."""
        if self.rate == 0:  # nothing moved
            return 0.0
        return self.share * self.beta1**self.late_steps / (self.rate * self.steps)


@torch.no_grad()
def correct(optimizer: Optimizer, missed: Iterable[tuple[Tensor, Tensor]], correction: Correction) -> None:
    """m ← m − √v · x for each parameter of AdamW and x = `missed`, float32 of its shape, in updates: θ goes by +x.

    In float32 or 8 bits, wherever the moments are. A parameter without moments, before its first step, stays without.
    """
    for parameter, distance in missed:
        state = optimizer.state[parameter]
        if not state:
            continue
        second = _read(state, 2) if "state2" in state else state["exp_avg_sq"]
        scale = (second / (1 - correction.beta2 ** int(state["step"]))).sqrt_()
        change = scale.mul_(distance.to(scale.device)).mul_(-correction.updates)
        if "state1" in state:
            _write(state, _read(state, 1).add_(change))
        else:
            state["exp_avg"].add_(change)


def _read(state: dict[str, Tensor], number: int) -> Tensor:
    """A moment of bitsandbytes as float32, which may be its own memory."""
    moment = state[f"state{number}"]
    if moment.dtype == torch.float32:
        return moment
    from bitsandbytes.functional import dequantize_blockwise

    found: Tensor = dequantize_blockwise(
        moment, absmax=state[f"absmax{number}"], code=state[f"qmap{number}"], blocksize=BLOCK_ELEMENTS
    )
    return found


def _write(state: dict[str, Tensor], first: Tensor) -> None:
    if first is state["state1"]:
        return
    from bitsandbytes.functional import quantize_blockwise

    quantised, how = quantize_blockwise(first, code=state["qmap1"], blocksize=BLOCK_ELEMENTS)
    state["state1"].copy_(quantised)
    state["absmax1"].copy_(how.absmax)
