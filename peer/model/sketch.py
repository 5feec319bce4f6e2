"""A run's model by its shapes alone, for planning and choosing a device: no weight is read, drawn or allocated."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec, TensorEntry
from coordinator.views import quantity
from dht.errors import UsageError
from peer.data.hub import HUB
from peer.model.adapter import sketch_adapter
from peer.model.families import make_module, shapes_of
from peer.model.given import holds_weights, read_safetensors
from peer.model.source import CONFIG_ONLY, checked, folder_of, settled
from peer.numerics.fragments import FLOAT_BYTES

COPIES = 2  # of the parameters in memory while a run is described: the model, and version 0

Shapes = dict[str, tuple[int, ...]]


def with_shapes(config: RunConfig) -> RunConfig:
    """Return the run with its tensors' names and shapes, if its keys do not imply them; raises UsageError."""
    model = config.model
    if model.is_plain_llama or model.tensors:
        return config
    if config.adapter is not None:
        return sketch_adapter(config, folder_of(model.source, CONFIG_ONLY))
    if model.is_own:
        shapes = {name: tuple(value.shape) for name, value in read_safetensors(Path(model.source)).items()}
    else:
        model = settled(model, config.data.context_tokens, folder_of(model.source, CONFIG_ONLY))
        shapes = model_shapes(model, config.data.context_tokens)
    tensors = tuple(TensorEntry(name=name, shape=shape) for name, shape in shapes.items())
    return config.model_copy(update={"model": checked(model, {"tensors": tensors})})


def lacks_base(config: RunConfig) -> bool:
    """Whether only the config of an adapter's base is here: enough for a plan, not for training."""
    source = config.model.source
    if config.adapter is None or not source or source.startswith(HUB):
        return False
    folder = Path(source)
    return (folder / CONFIG_ONLY[0]).is_file() and not holds_weights(folder)


def model_shapes(model: ModelSpec, context_tokens: int) -> Shapes:
    """Return the shape of every trained tensor by name; raises UsageError."""
    with torch.device("meta"):
        return shapes_of(make_module(model, context_tokens))


def check_room(model: ModelSpec, context_tokens: int, room_bytes: int | None) -> None:
    """Raise UsageError if the model and its values do not fit into `room_bytes`; allocates nothing."""
    elements = sum(map(math.prod, model_shapes(model, context_tokens).values()))
    need = COPIES * FLOAT_BYTES * elements
    if room_bytes is not None and need > room_bytes:
        raise UsageError(
            f"this {model.family} has {elements:,} parameters, which take {quantity.size(need)} to set up, and "
            f"{quantity.size(room_bytes)} are free here; choose smaller sizes under [model]"
        )
