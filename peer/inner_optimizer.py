"""The inner optimizer, by name, and its learning rate (design §8: the rate follows certified progress)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coordinator.manifest import InnerSpec
from dht.errors import LocalError

MIN_8BIT_ELEMENTS = 4096  # smaller tensors keep float32 state: bitsandbytes' own default
REWARM_STEPS = 10  # steps until an optimizer that began without state may use the full rate

# lookup tables of the 8-bit format: the same in every process, so never saved
_CONSTANT_STATE = frozenset({"qmap1", "qmap2"})


def make_optimizer(parameters: Iterable[nn.Parameter], spec: InnerSpec) -> Optimizer:
    """The optimizer that `spec` names, with weight decay on matrices only; set its rate before every step."""
    listed = list(parameters)
    groups = [
        {"params": [p for p in listed if p.ndim > 1], "weight_decay": spec.weight_decay},
        {"params": [p for p in listed if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (spec.beta1, spec.beta2)
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=betas, foreach=True)
    # its import advises to install kernels for 4-bit inference, which nobody here needs
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    from bitsandbytes.optim import AdamW8bit

    return cast(Optimizer, AdamW8bit(groups, lr=spec.learning_rate, betas=betas, min_8bit_size=MIN_8BIT_ELEMENTS))


def rate(progress_steps: int, total_steps: int, spec: InnerSpec) -> float:
    """Learning rate after `progress_steps` of `total_steps` certified steps: linear warm-up, then a half cosine
    down to `final_rate_share` of the peak, where it stays."""
    if progress_steps < spec.warmup_steps:
        return spec.learning_rate * (progress_steps + 1) / (spec.warmup_steps + 1)
    past = min(1.0, (progress_steps - spec.warmup_steps) / max(1, total_steps - spec.warmup_steps))
    share = spec.final_rate_share + (1 - spec.final_rate_share) * 0.5 * (1 + math.cos(math.pi * past))
    return spec.learning_rate * share


def rewarm(state_steps: int) -> float:
    """Factor on the rate of an optimizer whose state is `state_steps` old, for a joiner without inner state."""
    return min(1.0, (state_steps + 1) / (REWARM_STEPS + 1))


def set_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Use `learning_rate` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def assert_quantised(optimizer: Optimizer) -> None:
    """Raise LocalError unless every tensor of at least `MIN_8BIT_ELEMENTS` has 8-bit moments; call after a step."""
    for parameter in _parameters(optimizer):
        state = optimizer.state[parameter]
        moments = [state.get("state1"), state.get("state2")]
        if parameter.numel() >= MIN_8BIT_ELEMENTS and any(m is None or m.dtype != torch.uint8 for m in moments):
            raise LocalError('the 8-bit optimizer keeps its state in 32 bits here; choose inner.optimizer = "adamw"')


def export_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """Copies of all optimizer state as CPU tensors named `<parameter index>.<field>`; numbers become int64 scalars."""
    exported: dict[str, Tensor] = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        for field, value in optimizer.state[parameter].items():
            if field not in _CONSTANT_STATE:
                exported[f"{index}.{field}"] = torch.as_tensor(value).detach().to("cpu", copy=True)
    return exported


def import_state(optimizer: Optimizer, exported: dict[str, Tensor]) -> None:
    """Continue from what `export_state` returned for an optimizer over parameters of the same shapes.

    Raises LocalError if it does not belong to this optimizer, which then is unchanged.
    """
    moment = "state1" if hasattr(optimizer, "init_state") else "exp_avg"
    imported = [
        {name.split(".", 1)[1]: value for name, value in exported.items() if name.split(".", 1)[0] == str(index)}
        for index in range(len(_parameters(optimizer)))
    ]
    for parameter, fields in zip(_parameters(optimizer), imported, strict=True):
        if fields and (moment not in fields or fields[moment].shape != parameter.shape):
            raise LocalError("the saved optimizer state belongs to another run; remove it to start without")
    optimizer.state.clear()
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            fields = imported.pop(0)
            if fields:
                _install(optimizer, (group_index, index), parameter, fields)


def _install(optimizer: Optimizer, place: tuple[int, int], parameter: nn.Parameter, fields: dict[str, Tensor]) -> None:
    if hasattr(optimizer, "init_state"):  # bitsandbytes: creates the lookup tables beside the state
        optimizer.init_state(optimizer.param_groups[place[0]], parameter, *place)
    state = optimizer.state[parameter]
    for field, value in fields.items():
        if value.dtype == torch.int64:
            state[field] = int(value)
        else:
            # torch keeps its step counter on the CPU whatever the device
            state[field] = value.clone() if value.ndim == 0 else value.to(parameter.device, copy=True)


def _parameters(optimizer: Optimizer) -> Sequence[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
