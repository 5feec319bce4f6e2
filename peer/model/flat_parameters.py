"""The trained tensors of a module in one flat vector; the module's parameters and gradients are views of it.

So a snapshot of a fragment is one copy, an adoption two element-wise operations, and clipping needs one norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from dht.errors import LocalError
from dht.statement import digest_of
from peer.machine.heap import give_back_freed
from peer.model.own_module import trained_parameters
from peer.model.rounding_remainders import RoundingRemainders
from peer.numerics.fragments import FragmentLayout, fragment_spans

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class FlatParameters:
    """All fragments in order, on one device, in float32 or bfloat16.

    A fragment is read and loaded in float32. The remainder that bfloat16 cuts off a loaded value is kept in host memory
    and added whenever the fragment is read. An outer gradient is thus measured from the value that was loaded: it
    holds the learner's own steps, without its rounding.
    """

    def __init__(self, module: nn.Module, fragments: Sequence[FragmentLayout], precision: str, device: str) -> None:
        self.device = torch.device(device)
        self.fragments = tuple(fragments)
        self._dtype = DTYPES[precision]
        self._named = trained_parameters(module)
        listed = {tensor.name for layout in fragments for tensor in layout.tensors}
        if strange := sorted(self._named.keys() - listed):
            raise LocalError(f"the tensor {strange[0]} is in no fragment")
        self._spans = fragment_spans(fragments)
        elements = self._spans[-1].stop
        self.values = torch.empty(elements, dtype=self._dtype, device=self.device)
        self.gradient = torch.empty(0, dtype=self._dtype, device=self.device)
        rounded = self._dtype == torch.bfloat16
        self._remainders = RoundingRemainders(elements if rounded else 0, pinned=self.device.type == "cuda")
        for name, view in self._cut(self.values):
            parameter = self._named[name]
            view.copy_(parameter.detach())
            parameter.grad = None
            parameter.data = view
        give_back_freed()  # the memory of the module's own tensors, before gradients take as much again
        self.wake()

    @property
    def layouts(self) -> tuple[FragmentLayout, ...]:
        """The layout of this process's part of each fragment: all of it."""
        return self.fragments

    @property
    def stepped(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimizer moves, by name."""
        return self._named

    def own(self, fragment: int, whole: Tensor) -> Tensor:
        """Return this process's part of a fragment, float32[elements], on the device of the parameters."""
        return whole.to(self.values.device)

    def put(self, fragment: int, part: Tensor, out: Tensor | None) -> None:
        """Copy a part, such as `exact` returns, into `out`, float32[elements] on any device, unless it is None."""
        if out is not None:
            out.copy_(part)

    def clear_gradient(self) -> None:
        """Set the gradient to zero."""
        self.gradient.zero_()

    def finish_gradient(self, add: Callable[[Tensor], None]) -> None:
        """Call `add` to add the other processes' gradients."""
        add(self.gradient)

    def norm(self) -> Tensor:
        """Return the norm of the gradient."""
        length: Tensor = torch.linalg.vector_norm(self.gradient, dtype=torch.float32)
        return length

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradient by `factor`."""
        self.gradient.mul_(factor)

    def exact(self, fragment: int) -> Tensor:
        """Return this process's part of a fragment in float32, on the parameters' device; it may share their memory."""
        values, span = self._view(self.values, fragment), self._spans[fragment]
        return values.float().add_(self._remainders.of(span, values.device)) if len(self._remainders) else values

    def load(self, fragment: int, exact: Tensor) -> None:
        """Load float32[elements], which may be the changed result of `exact`; overwrites it."""
        values = self._view(self.values, fragment)
        if exact.data_ptr() != values.data_ptr():
            values.copy_(exact)
        if len(self._remainders):
            self._remainders.keep(self._spans[fragment], exact.sub_(values))

    def export_state(self) -> dict[str, Tensor]:
        """Return all values, not copied, and the rounding remainders."""
        return {"theta": self.values, **self._remainders.export_state()}

    def fits(self, state: Mapping[str, Tensor]) -> bool:
        """Whether the state holds an `export_state` of such parameters."""
        values = state.get("theta")
        return values is not None and values.shape == self.values.shape and values.dtype == self._dtype

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from an `export_state` that `fits`."""
        self.values.copy_(state["theta"])
        self._remainders.import_state(state)

    def rest(self) -> None:
        """Free the gradients, and the memory of a GPU; `exact` and `load` still work."""
        for parameter in self._named.values():
            parameter.grad = None
        self.gradient = torch.empty(0, dtype=self._dtype)
        self._move("cpu")

    def wake(self) -> None:
        """Move the parameters back to the device and allocate gradients, which are zero."""
        self._move(self.device)
        self.gradient = torch.zeros_like(self.values)
        for name, view in self._cut(self.gradient):
            self._named[name].grad = view

    @property
    def is_awake(self) -> bool:
        """Whether gradients are allocated."""
        return len(self.gradient) == len(self.values)

    def _move(self, device: torch.device | str) -> None:
        moved = self.values.to(device)
        if moved is not self.values:
            self.values = moved
            for name, view in self._cut(moved):
                self._named[name].data = view

    def _view(self, flat: Tensor, fragment: int) -> Tensor:
        return flat[self._spans[fragment]]

    def _cut(self, flat: Tensor) -> list[tuple[str, Tensor]]:
        """Return each tensor's name and its view of a flat vector, in its shape."""
        tensors = [tensor for layout in self.fragments for tensor in layout.tensors]
        wholes = [tensor for tensor in tensors if not tensor.first_row]  # a tensor's other parts follow its first
        sizes = [math.prod(tensor.whole_shape) for tensor in wholes]
        return [
            (tensor.name, flat[end - size : end].view(tensor.whole_shape))
            for tensor, size, end in zip(wholes, sizes, accumulate(sizes), strict=True)
        ]


def parameters_digest(state: Mapping[str, Tensor]) -> bytes:
    """Return a digest of the parameters in an `export_state` of a `Learner`, bit for bit."""
    return digest_of(b"lab-learner", state["theta"].view(torch.uint8).numpy().tobytes())
