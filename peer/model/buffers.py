"""Buffers that are saved with a model. They are neither trained nor exchanged, so their values follow from its config.

`transformers` leaves them undefined when it loads a folder whose files lack them. So an export holds them, and what
reads other folders takes their values from a fresh model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from coordinator.run.model_spec import ModelSpec
from coordinator.views import quantity
from dht.errors import UsageError
from peer.model.build import Unallocated, check_shapes
from peer.model.families import make_module


def kept_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return every buffer that is saved with the module, by name."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in part.named_buffers(recurse=False)
        if name not in part._non_persistent_buffers_set
    }


def fresh_buffers(make: Callable[[], nn.Module], seed: int = 0) -> dict[str, Tensor]:
    """Return the kept buffers of the module that `make` makes on the CPU; leaves global random state alone.

    The module's parameters get no memory, unless a buffer would get none either.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with Unallocated():
            found = kept_buffers(make())
        if any(value.is_meta for value in found.values()):
            torch.manual_seed(seed)
            found = kept_buffers(make())
    return found


def run_buffers(spec: ModelSpec, context_tokens: int, bytes_max: int | None = None) -> dict[str, Tensor]:
    """Return the kept buffers of a run's model; `spec` must be that of a manifest.

    Raises UsageError if the installed `transformers` builds other tensors than the manifest lists, or if all buffers
    would take more than `bytes_max`.
    """
    if spec.is_plain_llama or spec.is_own:
        return {}
    hollow = check_shapes(spec, context_tokens)
    if not kept_buffers(hollow):
        return {}
    size_bytes = sum(value.numel() * value.element_size() for value in hollow.buffers())
    if bytes_max is not None and size_bytes > bytes_max:
        raise UsageError(
            f"the buffers of this {spec.family} would take {quantity.size(size_bytes)}, and no more than "
            f"{quantity.size(bytes_max)} are built to check them; take an export of parameters alone"
        )
    return fresh_buffers(partial(make_module, spec, context_tokens))


def refill_buffers(module: nn.Module, missing: Iterable[str], make: Callable[[], nn.Module]) -> frozenset[str]:
    """Give the missing tensors that are kept buffers the values of a fresh module; return their names."""
    kept = kept_buffers(module)
    names = kept.keys() & set(missing)
    fresh = fresh_buffers(make) if names else {}
    filled = frozenset(name for name in names if name in fresh and fresh[name].shape == kept[name].shape)
    with torch.no_grad():
        for name in filled:
            kept[name].copy_(fresh[name])
    return filled
