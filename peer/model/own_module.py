"""A user's own module: its trained parameters, the values that must match at all peers, and buffers that cannot."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from dht.errors import UsageError
from dht.statement import digest_of


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return every non-empty tensor that requires a gradient, once, by its first name; raises UsageError."""
    for name, one in module.named_parameters():
        if is_lazy(one):
            raise UsageError(f"{name} has no shape yet: call the model once before the session begins")
        if one.is_meta:
            raise UsageError(f"{name} has no values: it is on the meta device")
        if one.requires_grad and one.is_complex():
            raise UsageError(
                f"{name} is complex, and only real numbers are merged: keep torch.view_as_real of it instead"
            )
    found = {name: one for name, one in module.named_parameters() if one.requires_grad and one.numel()}
    if not found:
        raise UsageError("the model has no parameter that requires a gradient")
    return found


def named_values(module: nn.Module) -> dict[str, Tensor]:
    """Return every trained tensor once, as float32 on the CPU; raises UsageError."""
    return {
        name: parameter.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, parameter in trained_parameters(module).items()
    }


def frozen_digest(module: nn.Module) -> bytes:
    """Return a digest of the frozen parameters: name, type, shape and bits; empty if there are none.

    Training on top of other frozen values trains another model.
    """
    frozen = {name: one for name, one in module.named_parameters() if not one.requires_grad and one.numel()}
    parts = []
    for name, one in sorted(frozen.items()):
        parts += [f"{name} {one.dtype} {tuple(one.shape)}".encode(), content_digest(one)]
    return digest_of(b"muster-frozen", *parts) if parts else b""


def content_digest(value: Tensor) -> bytes:
    """Return the SHA-256 of a tensor's bits, whatever its type."""
    content: Any = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()  # no extra copy
    return hashlib.sha256(content).digest()


class BufferWatch:
    """A detector of buffers that training changes: they are not exchanged, so the peers' models differ in them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen = self._versions()

    def known(self) -> list[str]:
        """Return the buffers that are sure to change: statistics of norms."""
        norms = {name: one for name, one in self._module.named_modules() if isinstance(one, _NormBase)}
        running = {name: one for name, one in norms.items() if one.track_running_stats and one.running_mean is not None}
        return [f"{name}.running_mean".lstrip(".") for name in running]

    def changed(self) -> list[str]:
        """Return the buffers that were written to since this watch began."""
        now = self._versions()
        return [name for name in now if now[name] != self._seen.get(name)]

    def _versions(self) -> dict[str, tuple[int, int]]:
        return {name: (id(one), one._version) for name, one in self._module.named_buffers() if not one.is_inference()}
