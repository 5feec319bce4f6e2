"""A correction of the inner optimizer's first moment by the progress that the other peers made meanwhile.

A merge with a learner's work in it tells how far the swarm moved (D) while the learner moved d. The noise of its own
batches is in d and still in its first moment, which will repeat it. What the others have found is in neither. So
AdamW's first moment is changed by the amount that would have turned d into D, as if it had been averaged, without
sending it (docs/adr/0041; MimeLite 2008.03606 and FedCM 2106.10874 give clients a server's momentum for the same
purpose).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from coordinator.run.manifest import RunConfig

BLOCK_ELEMENTS = 256  # of an 8-bit moment share a scale, as in bitsandbytes


@dataclass(frozen=True, slots=True)
class Correction:
    """The share of a difference in distance that goes into the first moment, and how it fades."""

    share: float
    rate: float  # of the last inner step: the next step's rate may become known before or after an adoption
    steps: int  # during which the difference arose
    late_steps: int  # since then, over which the first moment has faded
    beta1: float
    beta2: float

    @classmethod
    def of(cls, config: RunConfig, rate: float, steps: int, late_steps: int) -> Correction:
        """Return the run's correction; its `outer.moment_correction` must be set."""
        assert config.outer.moment_correction is not None
        inner = config.inner
        return cls(config.outer.moment_correction, rate, steps, late_steps, inner.beta1, inner.beta2)

    @property
    def updates(self) -> float:
        """The factor from a distance to a difference in one step's update, in units of the rate."""
        if self.rate == 0:  # nothing moved
            return 0.0
        return self.share * self.beta1**self.late_steps / (self.rate * self.steps)


@torch.no_grad()
def correct(optimizer: Optimizer, missed: Iterable[tuple[Tensor, Tensor]], correction: Correction) -> None:
    """Correct the first moments of AdamW by `missed`, pairs of a parameter and a float32 distance of its shape.

    m ← m − √v · x, with the distance x in updates, so that θ moves by +x. It works on moments in float32 or 8 bits, on
    any device. A parameter without moments, before its first step, is skipped.
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
    """Return a bitsandbytes moment as float32, which may share its memory."""
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
