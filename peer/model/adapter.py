"""A run's model if the run trains an adapter: the frozen base, with LoRA's A and B beside its linear layers.

All other code treats such a run like any model: its tensors are the adapter's, A is seeded, and B is zero.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import torch
from torch import nn

from coordinator.run.adapter_spec import ALL_LINEAR, AdapterSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import TensorEntry
from coordinator.views import quantity
from dht.errors import UsageError
from peer.data.hub import HUB
from peer.machine.text import first_line
from peer.model.base import base_counts, base_folder, base_tensors, check_base, check_tensor_count, given_file
from peer.model.build import build_hollow_model, build_model, initial_parameters, parameter_specs
from peer.model.families import make_module
from peer.model.given import load_weights
from peer.model.own_module import trained_parameters
from peer.model.source import checked, settled
from peer.model.trial import try_family

_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"  # suffixes that `peft` adds to the name of a layer


def build_run_model(config: RunConfig) -> nn.Module:
    """Return the model of a run at version 0, on the CPU; leaves global random state alone. Raises UsageError.

    A run with an adapter must be `located`: its config then names the folder of its base on this machine.
    """
    if config.adapter is None:
        return build_model(config.model, config.data.context_tokens, config.seed)
    folder = base_folder(config.model.source)
    _check_shapes(config, config.adapter)
    check_base(config.adapter, folder)
    base, _ = load_weights(config.model, config.data.context_tokens, folder, config.adapter.held)
    module = _adapted(base, config.adapter)
    initial = initial_parameters(config.model, config.seed)
    with torch.no_grad():
        for name, parameter in trained_parameters(module).items():
            parameter.copy_(initial[name])
    return module


def build_hollow_run_model(config: RunConfig) -> nn.Module:
    """Return the model without trained parameters of its own, for callers that set their `data` to existing memory."""
    if config.adapter is None:
        return build_hollow_model(config.model, config.data.context_tokens)
    return build_run_model(config)


def describe_adapter(config: RunConfig, base: str, room_bytes: int | None) -> tuple[RunConfig, str]:
    """Return the run as its manifest has it, and the folder of the base unless it is on the Hub; raises UsageError."""
    source = config.model.source
    folder = base_folder(base or source)
    check_tensor_count(folder)
    sketched = sketch_adapter(config, folder)
    model, spec = sketched.model, sketched.adapter
    assert spec is not None
    _check_room(spec, room_bytes)
    context_tokens = config.data.context_tokens
    module, _ = load_weights(model, context_tokens, folder, spec.held)
    try_family(module, model, context_tokens, config.data.is_marked)
    is_public = source.startswith(HUB)
    model = model.model_copy(update={"source": source if is_public else ""})
    given = given_file(folder) if spec.give_base else None
    spec = spec.model_copy(update={"base": base_tensors(folder), "base_file": given})
    here = base if is_public else str(folder.absolute())
    return config.model_copy(update={"model": model, "adapter": spec}), here


def sketch_adapter(config: RunConfig, folder: Path | None) -> RunConfig:
    """Return the run with the adapter's tensors and its base's size, from `config.json` alone; raises UsageError."""
    assert config.adapter is not None
    model = settled(config.model, config.data.context_tokens, folder).model_copy(update={"weights": "seeded"})
    with torch.device("meta"):
        module = make_module(model, config.data.context_tokens)
        elements, linear = base_counts(module)
        shapes = _trained_shapes(_adapted(module, config.adapter))
    model = checked(model, {"tensors": tuple(_entry(name, shape) for name, shape in shapes.items())})
    spec = config.adapter.model_copy(update={"base_elements": elements, "linear_elements": linear})
    return config.model_copy(update={"model": model, "adapter": spec})


def adapter_layers(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the base's layers that have an adapter, in order."""
    return tuple(one.name.removesuffix(_A) for one in config.model.tensors if one.name.endswith(_A))


def peft_name(name: str) -> str:
    """Return the name of a tensor of the run in `adapter_model.safetensors`."""
    return f"base_model.model.{name.replace('.default.', '.')}"


def _entry(name: str, shape: tuple[int, ...]) -> TensorEntry:
    """Return the entry of an adapter tensor.

    A starts as in `peft`, within ± 1/√inputs, and B at zero, so version 0 is the base.
    """
    if not name.endswith((_A, _B)):
        raise UsageError(f"adapter.targets: {name} is of a layer that is not linear; name linear layers only")
    if name.endswith(_B):
        return TensorEntry(name=name, shape=shape, start="zeros")
    return TensorEntry(name=name, shape=shape, bound=1 / math.sqrt(shape[-1]))


def _trained_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in module.named_parameters() if one.requires_grad}


def _adapted(module: nn.Module, spec: AdapterSpec) -> nn.Module:
    """Return the same module with frozen parameters and an adapter in place, in float32; raises UsageError."""
    from peft import LoraConfig, inject_adapter_in_model

    module.requires_grad_(False)
    targets = ALL_LINEAR if spec.targets == (ALL_LINEAR,) else list(spec.targets)
    lora = LoraConfig(
        r=spec.rank,
        lora_alpha=cast(int, spec.alpha),
        target_modules=targets,
        lora_dropout=0.0,
        fan_in_fan_out=any(type(one).__name__ == "Conv1D" for one in module.modules()),
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(devices=[]):  # peft draws random values, which are replaced
            inject_adapter_in_model(lora, module)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UsageError(f"adapter.targets: {first_line(error)}") from None
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return module


def _check_shapes(config: RunConfig, spec: AdapterSpec) -> None:
    """Raise UsageError unless this machine builds the run's tensors.

    Runs before anything is allocated: a manifest could list few tensors and have a huge model built.
    """
    with torch.device("meta"):
        module = make_module(config.model, config.data.context_tokens)
        counts = base_counts(module)
        found = _trained_shapes(_adapted(module, spec))
    if found != {one.name: one.shape for one in parameter_specs(config.model)}:
        raise UsageError("the transformers or peft that is installed here builds another adapter than the run's")
    if counts != (spec.base_elements, spec.linear_elements):
        raise UsageError("the transformers that is installed here builds another base than the run's")


def _check_room(spec: AdapterSpec, room_bytes: int | None) -> None:
    need = spec.base_bytes
    if room_bytes is not None and need > room_bytes:
        raise UsageError(
            f"this base takes {quantity.size(need)} in {spec.held}, and {quantity.size(room_bytes)} are free "
            "here; choose a smaller one, or another adapter.base_precision"
        )
