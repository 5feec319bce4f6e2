"""The inner optimizer, by name, and its learning rate (design §8: the rate follows certified progress)."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from coordinator.run.inner_spec import InnerOptimizer, InnerSpec
from dht.errors import LocalError, UsageError
from peer.learner.optimizers import muon
from peer.learner.optimizers.by_rows import step_by_rows
from peer.learner.optimizers.code_tables import code_table

MIN_8BIT_ELEMENTS = 4096  # smaller tensors keep float32 state: bitsandbytes' own default
REWARM_STEPS = 10  # steps until an optimizer that began without state may use the full rate
SLOW_DECAY = 0.9999  # of AdEMAMix's third moment (2409.03137), which no other optimizer has

Moments = dict[str, tuple[int, ...]]
"""The moments that an optimizer keeps per parameter: name in its state, and dimensions before the parameter's."""

_ADAMW: Moments = {"exp_avg": (), "exp_avg_sq": ()}
_MUON: Moments = {"momentum_buffer": ()}
_MUON_8BIT: Moments = {muon.MOMENTUM: ()}
_8BIT: dict[str, Moments] = {
    "adamw8bit": {"state1": (), "state2": ()},
    "lion8bit": {"state1": ()},
    "ademamix8bit": {"state1": (2,), "state2": ()},
}
_ALL_MOMENTS = frozenset().union(_ADAMW, _MUON, _MUON_8BIT, *_8BIT.values())
# lookup tables of the 8-bit format: the same in every process, so never saved
_CONSTANT_STATE = frozenset({"qmap1", "qmap2"})


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    spec: InnerSpec,
    embeddings: Iterable[nn.Parameter] = (),
    rows: muon.Rows = muon.WHOLE,
) -> Optimizer:
    """Return the optimizer that `spec` names, with weight decay on matrices only; set its rate before every step.

    Muon orthogonalises the matrices that are not `embeddings`; AdamW steps the rest, and one rate fits both. `rows`
    makes a split matrix whole for that. Raises UsageError if the optimizer needs whole matrices but they are split.
    """
    listed = list(parameters)
    if spec.optimizer not in ("muon", "muon8bit"):
        return _make_plain(listed, spec)
    aside = {id(parameter) for parameter in embeddings}
    hidden = {id(parameter) for parameter in listed if parameter.ndim == 2} - aside
    matrices, others = ([p for p in listed if (id(p) in hidden) is wanted] for wanted in (True, False))
    parts: list[Optimizer] = []
    if matrices:
        parts.append(_make_muon(matrices, spec, rows))
    if others:
        beside: InnerOptimizer = "adamw8bit" if spec.optimizer == "muon8bit" else "adamw"
        parts.append(_make_plain(others, spec.model_copy(update={"optimizer": beside})))
    return _Parts(parts, spec)


def _make_muon(matrices: Sequence[nn.Parameter], spec: InnerSpec, rows: muon.Rows) -> Optimizer:
    if spec.optimizer == "muon8bit":
        import_8bit()  # before it imports other modules of that package
        groups = _groups(matrices, spec, _MUON_8BIT)
        return muon.Muon8bit(groups, spec.learning_rate, spec.muon_momentum, MIN_8BIT_ELEMENTS, rows)
    if rows is not muon.WHOLE:
        raise UsageError('a model that devices share needs inner.optimizer = "muon8bit" in place of "muon"')
    groups = _groups(matrices, spec, _MUON)
    return Muon(groups, lr=spec.learning_rate, momentum=spec.muon_momentum, adjust_lr_fn="match_rms_adamw")


def _make_plain(parameters: Sequence[nn.Parameter], spec: InnerSpec) -> Optimizer:
    """Return one optimizer for all parameters."""
    betas = (spec.beta1, spec.beta2)
    if spec.optimizer == "adamw":
        return AdamW(_groups(parameters, spec, _ADAMW), lr=spec.learning_rate, betas=betas, foreach=True)
    optim = import_8bit()
    make: Callable[..., Any] = {
        "adamw8bit": optim.AdamW8bit,
        "lion8bit": optim.Lion8bit,
        "ademamix8bit": optim.AdEMAMix8bit,
    }[spec.optimizer]
    decays = (*betas, SLOW_DECAY) if spec.optimizer == "ademamix8bit" else betas
    groups = _groups(parameters, spec, _8BIT[spec.optimizer])
    made = make(groups, lr=spec.learning_rate, betas=decays, min_8bit_size=MIN_8BIT_ELEMENTS)
    made.name2qmap |= {"dynamic": code_table(signed=True), "udynamic": code_table(signed=False)}
    step_by_rows(made)
    return cast(Optimizer, made)


def import_8bit() -> Any:
    """Import bitsandbytes' optimizers and return their module; takes a second of CPU time."""
    # its import advises to install kernels for 4-bit inference, which are not needed here
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    from bitsandbytes import optim

    return optim


def _groups(parameters: Sequence[nn.Parameter], spec: InnerSpec, moments: Moments) -> list[Any]:
    """Return groups of matrices with weight decay and vectors without; each lists its optimizer's moments."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": spec.weight_decay, "moments": moments},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0, "moments": moments},
    ]
    return [group for group in groups if group["params"]]


class _Parts(Optimizer):
    """Several optimizers as one, each with parameters of its own; they share one state and list of groups."""

    def __init__(self, parts: Sequence[Optimizer], spec: InnerSpec) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {"lr": spec.learning_rate})
        self._parts = tuple(parts)
        for part in parts:
            part.state = self.state  # keyed by parameter, so the parts never collide

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one step of each part."""
        for part in self._parts:
            part.step()

    def init_state(self, group: Any, parameter: nn.Parameter, _group_index: int, index: int) -> None:
        """Have the group's part begin a state, if it has a method for that."""
        for part in self._parts:
            for number, one in enumerate(part.param_groups):
                if one is group and hasattr(part, "init_state"):
                    part.init_state(group, parameter, number, index)


def rate(progress_steps: int, total_steps: int, spec: InnerSpec) -> float:
    """Return the learning rate after `progress_steps` of `total_steps` certified steps.

    It warms up linearly, then falls by the schedule to `final_rate_share` of the peak, where it stays.
    """
    if progress_steps < spec.warmup_steps:
        return spec.learning_rate * (progress_steps + 1) / (spec.warmup_steps + 1)
    begins = spec.warmup_steps
    if spec.schedule == "wsd":
        begins = max(begins, math.floor(total_steps * (1 - spec.falling_share)))
    past = min(1.0, max(0, progress_steps - begins) / max(1, total_steps - begins))
    left = 0.5 * (1 + math.cos(math.pi * past)) if spec.schedule is None else 1 - past
    return spec.learning_rate * (spec.final_rate_share + (1 - spec.final_rate_share) * left)


def rewarm(state_steps: int) -> float:
    """Return the factor on the rate while the optimizer's state is young, as for a joiner without inner state."""
    return min(1.0, (state_steps + 1) / (REWARM_STEPS + 1))


def set_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Use `learning_rate` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def last_rate(optimizer: Optimizer) -> float:
    """Return the learning rate of the last step."""
    return float(optimizer.param_groups[0]["lr"])


def begin_state(optimizer: Optimizer, spec: InnerSpec) -> None:
    """Allocate the state of all parameters before the first step; raises LocalError if it is not as `spec` says.

    If the step itself allocated it, it would lie between the copies that the step frees. Later steps could not make
    full use of those holes.
    """
    for place in _places(optimizer):
        _begin(optimizer, place)
    if spec.keeps_8_bits:
        assert_quantised(optimizer)


def assert_quantised(optimizer: Optimizer) -> None:
    """Raise LocalError unless every tensor of at least `MIN_8BIT_ELEMENTS` has 8-bit moments by now."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = [optimizer.state[parameter].get(name) for name in group["moments"]]
            if parameter.numel() >= MIN_8BIT_ELEMENTS and any(m is None or m.dtype != torch.uint8 for m in moments):
                raise LocalError(
                    'the 8-bit optimizer keeps its state in 32 bits here; choose inner.optimizer = "adamw"'
                )


def state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of an optimizer's state, without the lookup tables that all its tensors share."""
    return sum(
        value.nbytes
        for parameter in _parameters(optimizer)
        for name, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor) and name not in _CONSTANT_STATE
    )


def move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Move the optimizer's state to this device; counters stay where they are, and shared tables stay shared."""
    moved: dict[int, Tensor] = {}
    for parameter in _parameters(optimizer):
        state = optimizer.state[parameter]
        for field, value in state.items():
            if isinstance(value, Tensor) and value.ndim:
                state[field] = moved.setdefault(id(value), value.to(device))


@cache
def bytes_per_parameter(name: InnerOptimizer) -> float:
    """Return the bytes this optimizer keeps per element of a large matrix, measured on one after a step."""
    matrix = nn.Parameter(torch.zeros(256, 256))
    matrix.grad = torch.ones_like(matrix)
    optimizer = make_optimizer([matrix], InnerSpec(optimizer=name))
    optimizer.step()
    return state_bytes(optimizer) / matrix.numel()


def export_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return all optimizer state, not copied, by `<parameter index>.<field>`; numbers become int64 scalars."""
    exported: dict[str, Tensor] = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        for field, value in optimizer.state[parameter].items():
            if field not in _CONSTANT_STATE:
                exported[f"{index}.{field}"] = torch.as_tensor(value).detach()
    return exported


def import_state(optimizer: Optimizer, exported: dict[str, Tensor]) -> None:
    """Continue from the `export_state` of an optimizer over parameters of the same shapes.

    Raises LocalError, without changing the optimizer, if the state does not belong to it.
    """
    by_index: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, value in exported.items():
        index, _, field = name.partition(".")
        by_index[index][field] = value
    imported = [(place, by_index[str(number)]) for number, place in enumerate(_places(optimizer))]
    if any(fields and not _fits(optimizer, place, fields) for place, fields in imported):
        raise LocalError("the saved optimizer state belongs to another run; remove it to start without")
    optimizer.state.clear()
    for place, fields in imported:
        if fields:
            _install(optimizer, place, fields)


def _fits(optimizer: Optimizer, place: tuple[int, int], fields: dict[str, Tensor]) -> bool:
    """Whether saved fields are the moments of the parameter at (group, index) under this optimizer."""
    group = optimizer.param_groups[place[0]]
    moments, shape = group["moments"], group["params"][place[1]].shape
    return fields.keys() & _ALL_MOMENTS == moments.keys() and all(
        fields[name].shape == (*before, *shape) for name, before in moments.items()
    )


def _install(optimizer: Optimizer, place: tuple[int, int], fields: dict[str, Tensor]) -> None:
    parameter = _begin(optimizer, place)
    state = optimizer.state[parameter]
    for field, value in fields.items():
        if value.dtype == torch.int64:
            state[field] = int(value)
        else:
            # torch keeps its step counter on the CPU, whatever the device
            state[field] = value.clone() if value.ndim == 0 else value.to(parameter.device, copy=True)


def _begin(optimizer: Optimizer, place: tuple[int, int]) -> nn.Parameter:
    """Return the parameter at (group, index), after beginning a new state if the optimizer has a method for that."""
    group = optimizer.param_groups[place[0]]
    parameter: nn.Parameter = group["params"][place[1]]
    if hasattr(optimizer, "init_state"):  # bitsandbytes creates the lookup tables here, with the state
        optimizer.init_state(group, parameter, *place)
    return parameter


def _places(optimizer: Optimizer) -> list[tuple[int, int]]:
    """Return (group, index) of all parameters, in order."""
    return [(group, index) for group, one in enumerate(optimizer.param_groups) for index in range(len(one["params"]))]


def _parameters(optimizer: Optimizer) -> Sequence[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
