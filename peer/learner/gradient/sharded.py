"""A model of which each process has a part of every tensor, for models that no single device can hold.

FSDP2 (`torch.distributed.fsdp.fully_shard`) gathers the parameters of one layer while it computes, and leaves every
process its rows of the gradient. All work between two steps is on those rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dht.errors import UsageError
from peer.data.marks import inputs_of, targets_of
from peer.learner.gradient.objective import BodyAndHead, chunks, count_of, layers_of, summed_cross_entropy
from peer.learner.group.collective import Ranks
from peer.model.flat_parameters import DTYPES
from peer.model.own_module import trained_parameters
from peer.model.rounding_remainders import RoundingRemainders
from peer.numerics.fragments import FragmentLayout, TensorSpec, fragment_spans, gather, scatter


class ShardedObjective:
    """`peer.learner.gradient.objective.Objective` for a model, which it shards across the processes."""

    def __init__(self, model: nn.Module, marked: bool, group: Ranks, precision: str, half: torch.dtype | None) -> None:
        from torch.distributed import group as everybody
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self._size = group.size
        self._model = model
        self._loss = _Loss(model, marked)
        for parameter in model.parameters():
            if parameter.dtype != DTYPES[precision] and parameter.requires_grad:
                parameter.data = parameter.data.to(DTYPES[precision])
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=None if half is None else torch.float32)
        mesh = DeviceMesh.from_group(cast(Any, everybody.WORLD), torch.device(group.device).type)
        for one in (*layers_of(model), self._loss):
            fully_shard(one, mesh=mesh, mp_policy=policy)

    def compile(self, wanted: bool) -> None:
        """Have torch compile the layers, or undo that."""
        for layer in layers_of(self._model):
            layer._compiled_call_impl = None
            if wanted:
                layer.compile(dynamic=False)

    def backward(self, tokens: Tensor, weight: float) -> Tensor:
        """Add the gradient of `weight` times the loss, summed over all processes; returns `weight` times the loss."""
        value = self._loss(tokens) * weight
        with torch.autocast(value.device.type, enabled=False):
            (value * self._size).backward()  # times the size, as FSDP averages
        return cast(Tensor, value.detach())


class _Loss(nn.Module):
    """The mean loss, with logits computed for a few tokens at a time and again for the gradient."""

    def __init__(self, model: nn.Module, marked: bool) -> None:
        super().__init__()
        self.model = model
        self._marked = marked
        self._is_in_parts = BodyAndHead.of(model) is not None

    def forward(self, tokens: Tensor) -> Tensor:
        inputs, targets = inputs_of(tokens, self._marked), targets_of(tokens, self._marked)
        if not self._is_in_parts:
            logits = self.model(**inputs, use_cache=False).logits
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets)
        head = cast(Any, self.model).get_output_embeddings()
        hidden = cast(Any, self.model).base_model(**inputs, use_cache=False)[0].flatten(0, 1)
        total = torch.zeros((), device=tokens.device)
        for piece, wanted in chunks(hidden, targets, head):
            total = total + cast(Tensor, checkpoint(_of_head, head, piece, wanted, use_reentrant=False))
        return total / count_of(targets)


def _of_head(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    return summed_cross_entropy(head(hidden), targets)


class ShardedParameters:
    """This process's rows of every tensor; same interface as `peer.model.flat_parameters.FlatParameters`."""

    def __init__(self, model: nn.Module, fragments: Sequence[FragmentLayout], precision: str, group: Ranks) -> None:
        self.device = torch.device(group.device)
        self.fragments = tuple(fragments)
        self._group = group
        self._dtype = DTYPES[precision]
        self._named = trained_parameters(model)
        parts = [_parts_here(layout, group) for layout in fragments]
        self._spans = [[span for span, _ in found] for found in parts]
        self.layouts = tuple(
            FragmentLayout(layout.index, tuple(spec for _, spec in found))
            for layout, found in zip(fragments, parts, strict=True)
        )
        self.stepped = {name: nn.Parameter(_local(one)) for name, one in self._named.items()}
        self._is_rounded = self._dtype == torch.bfloat16
        self._remainders = [RoundingRemainders(layout.elements if self._is_rounded else 0) for layout in self.layouts]
        self.is_awake = True

    def own(self, fragment: int, whole: Tensor) -> Tensor:
        return torch.cat([whole[:0], *(whole[span] for span in self._spans[fragment])]).to(self.device)

    def put(self, fragment: int, part: Tensor, out: Tensor | None) -> None:
        whole = self._whole(fragment, part)
        if out is not None:
            out.copy_(whole)

    def exact(self, fragment: int) -> Tensor:
        layout = self.layouts[fragment]
        values = gather(layout, self.stepped, torch.empty(layout.elements, device=self.device))
        if self._is_rounded:
            values.add_(self._remainders[fragment].of(slice(None), self.device))
        return values

    def load(self, fragment: int, exact: Tensor) -> None:
        layout = self.layouts[fragment]
        scatter(layout, exact, self.stepped)
        if self._is_rounded:
            rounded = gather(layout, self.stepped, torch.empty(layout.elements, device=self.device))
            self._remainders[fragment].keep(slice(None), exact.sub_(rounded))

    def clear_gradient(self) -> None:
        for one in self._named.values():
            one.grad = None

    def finish_gradient(self, add: Callable[[Tensor], None]) -> None:
        """Give the optimizer this process's rows; FSDP has added up the gradients already."""
        for name, one in self._named.items():
            stepped = self.stepped[name]
            stepped.data = _local(one)  # FSDP replaces its memory at the first forward
            stepped.grad = torch.zeros_like(stepped) if one.grad is None else _local(one.grad)

    @property
    def gradient(self) -> Tensor:
        """This process's rows of the gradient, tensor by tensor."""
        return torch.cat([cast(Tensor, one.grad).flatten() for one in self.stepped.values()])

    def norm(self) -> Tensor:
        lengths = [torch.linalg.vector_norm(cast(Tensor, one.grad), dtype=torch.float32) for one in self._parts()]
        squared = torch.stack(lengths).square().sum()
        self._group.add(squared)
        return squared.sqrt_()

    def scale(self, factor: Tensor) -> None:
        for one in self._parts():
            cast(Tensor, one.grad).mul_(factor)

    def export_state(self) -> dict[str, Tensor]:
        """Return all values and rounding remainders, in host memory; an empty dict except in the first process."""
        leads, values = self._group.leads, []
        elements = sum(layout.elements for layout in self.fragments)
        remainders = RoundingRemainders(elements if leads and self._is_rounded else 0)
        for fragment, (layout, part) in enumerate(zip(self.layouts, fragment_spans(self.fragments), strict=True)):
            here = gather(layout, self.stepped, torch.empty(layout.elements, device=self.device))
            whole = self._whole(fragment, here)
            if leads:
                values.append(whole.to("cpu", self._dtype))
            if self._is_rounded:
                whole = self._whole(fragment, self._remainders[fragment].of(slice(None), self.device))
                if leads:
                    remainders.keep(part, whole)
        return {"theta": torch.cat(values), **remainders.export_state()} if values else {}

    def fits(self, state: Mapping[str, Tensor]) -> bool:
        values = state.get("theta")
        elements = sum(layout.elements for layout in self.fragments)
        return values is not None and values.shape == (elements,) and values.dtype == self._dtype

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        remainders = RoundingRemainders.held_in(state)
        is_known = self._is_rounded and len(remainders) == len(state["theta"])
        for fragment, part in enumerate(fragment_spans(self.fragments)):
            scatter(self.layouts[fragment], self.own(fragment, state["theta"][part]), self.stepped)
            if is_known:
                rest = remainders.of(part, torch.device("cpu"))
                self._remainders[fragment].keep(slice(None), self.own(fragment, rest))

    def rest(self) -> None:
        """Free the gradients; parameters stay on their devices."""
        self.clear_gradient()
        for one in self._parts():
            one.grad = None
        self.is_awake = False

    def wake(self) -> None:
        self.is_awake = True

    def _parts(self) -> list[nn.Parameter]:
        return list(self.stepped.values())

    def _whole(self, fragment: int, part: Tensor) -> Tensor:
        """Return a whole fragment on the device, gathered from all processes' parts."""
        whole = torch.zeros(self.fragments[fragment].elements, device=self.device)
        pieces = torch.split(part, [span.stop - span.start for span in self._spans[fragment]])
        for span, piece in zip(self._spans[fragment], pieces, strict=True):
            whole[span] = piece
        self._group.add(whole)
        return whole


class ShardedRows:
    """Whole matrices for orthogonalisation: every process computes the whole and then takes its own rows."""

    def __init__(self, group: Ranks, parts: ShardedParameters) -> None:
        self._group = group
        specs = [one for layout in parts.fragments for one in layout.tensors]
        self._specs = {id(parts.stepped[one.name]): one for one in specs}

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        return self._specs[id(parameter)].whole_shape

    def whole(self, parameter: nn.Parameter, rows: Tensor) -> Tensor:
        found = torch.zeros(self.shape(parameter), device=rows.device)
        self.own(parameter, found).copy_(rows)
        self._group.add(found)
        return found

    def own(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        return whole[_rows_here(self._specs[id(parameter)], self._group)]


def _rows_here(tensor: TensorSpec, group: Ranks) -> slice:
    """Return this process's rows of the whole tensor, as FSDP splits it; raises UsageError if a process has none."""
    rows = tensor.whole_shape[0] if tensor.whole_shape else 1
    most = math.ceil(rows / group.size)
    if most * (group.size - 1) >= rows:
        raise UsageError(f"{tensor.name} has {rows} rows, too few for {group.size} devices; name fewer")
    return slice(group.rank * most, min((group.rank + 1) * most, rows))


def _parts_here(layout: FragmentLayout, group: Ranks) -> list[tuple[slice, TensorSpec]]:
    """Return this process's parts of a fragment: the span of each, and its rows of our part of a tensor."""
    found = []
    for tensor, offset in zip(layout.tensors, layout.offsets, strict=False):
        here, first = _rows_here(tensor, group), tensor.first_row
        start, stop = max(first, here.start), min(first + tensor.rows, here.stop)
        if start < stop:
            span = slice(offset + (start - first) * tensor.row_elements, offset + (stop - first) * tensor.row_elements)
            ours = TensorSpec(tensor.name, (here.stop - here.start, *tensor.shape[1:]))
            is_all = stop - start == ours.rows  # then `paired` returns the parameter itself, which has moments
            found.append((span, ours if is_all else ours.part(start - here.start, stop - start)))
    return found


def _local(tensor: Tensor) -> Tensor:
    """Return this process's part of an FSDP tensor."""
    return cast(Tensor, cast(Any, tensor).to_local()).detach()
