"""Inner steps on one device, and the two moments at which a fragment crosses (DiLoCo 2604.21428 Alg. 1, design §6.2).

No input or output in here: the same learner runs in its own process for a peer and inside the virtual swarm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor, nn

from coordinator.manifest import RunConfig
from dht.errors import LocalError
from peer.fragments import FragmentLayout, split_fragments
from peer.inner_optimizer import (
    assert_quantised,
    export_state,
    import_state,
    make_optimizer,
    rate,
    rewarm,
    set_rate,
)
from peer.local_count import Counters, LocalCount
from peer.model import build_model, loss, parameter_specs

_OPTIMIZER_PREFIX = "optimizer."


class Batches(Protocol):
    """An endless data set that can be entered anywhere; `peer.data.TrainingWindows` is one."""

    def batch(self, window: int) -> Tensor:
        """Tokens of one inner step: int64, shape (sequences, context_tokens + 1)."""
        ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """One inner step: how many there were so far, its loss in nats per token, its tokens."""

    step: int
    loss: float
    tokens: int


class Learner:
    """Trains one model replica. All fragments lie in one flat float32 vector, of which the parameters are views.

    So a snapshot is one copy, an adoption two element-wise operations, and clipping one norm.
    """

    def __init__(
        self, model: nn.Module, fragments: Sequence[FragmentLayout], batches: Batches, config: RunConfig, device: str
    ) -> None:
        self.fragments = tuple(fragments)
        self.model = model.to(device)
        self._batches = batches
        self._config = config
        self._device = torch.device(device)
        self._count = LocalCount(len(self.fragments))
        self._progress_steps = 0
        self._state_steps = 0  # age of the optimizer's state
        self._total_steps = max(1, config.versions * config.pace.steps_per_version // config.pace.fragments)
        self._theta, self.gradient = _flatten(self.model, self.fragments)
        self._views = fragment_views(self._theta, self.fragments)
        named = dict(self.model.named_parameters())
        embeddings = [named[spec.name] for layout in self.fragments for spec in layout.tensors if spec.embedding]
        self._optimizer = make_optimizer(self.model.parameters(), config.inner, embeddings)

    def step(self) -> StepReport:
        """One inner step on the next window; raises LocalError if loss or gradient is not finite."""
        batch = self._batches.batch(self._count.window).to(self._device)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self._device.type == "cuda"):
            value = loss(self.model, batch)
        self.gradient.zero_()
        torch.autograd.backward(value)
        norm = torch.linalg.vector_norm(self.gradient)
        self.gradient.mul_((self._config.inner.clip_norm / (norm + 1e-6)).clamp_(max=1.0))
        measured = torch.stack((value.detach(), norm)).tolist()  # one wait for the device instead of two
        if not all(map(math.isfinite, measured)):
            raise LocalError(f"training diverged at step {self.step_count + 1}; lower inner.learning_rate")
        set_rate(self._optimizer, self.rate)
        self._optimizer.step()
        if self._config.inner.optimizer.endswith("8bit") and self._state_steps == 0:
            assert_quantised(self._optimizer)
        self._state_steps += 1
        tokens = batch.shape[0] * (batch.shape[1] - 1)
        self._count.step(tokens)
        return StepReport(self.step_count, measured[0], tokens)

    @property
    def step_count(self) -> int:
        """Steps made so far."""
        return self._count.steps

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return rate(self._progress_steps, self._total_steps, self._config.inner) * rewarm(self._state_steps)

    def set_progress(self, progress_steps: int) -> None:
        """Follow the run's certified progress: mean version times steps per version (design §8)."""
        self._progress_steps = progress_steps

    def counters(self, fragment: int) -> Counters:
        """Steps and tokens in this fragment since what was last counted, and the data windows behind them."""
        return self._count.of(fragment)

    def snapshot(self, fragment: int, out: Tensor) -> Counters:
        """Copy the fragment into `out`, float32[elements] on any device; returns what it holds beyond its anchor."""
        out.copy_(self._views[fragment])
        return self.counters(fragment)

    def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int, counted_tokens: int
    ) -> None:
        """Take over a new anchor, float32[elements]: θ ← new + (θ - reference), rounded twice (design §6.2 step 10).

        `reference` is the snapshot that was merged (`carry`) or the old anchor (rebase, with nothing counted); the
        counters lose what was counted. Without a reference θ ← new, or θ ← αθ + (1 - α)·new (Streaming DiLoCo
        2501.18512) if the run blends and work of ours is in there; the counters start again at zero, because most
        of what they stood for is gone. The optimizer's state stays.
        """
        theta, outer = self._views[fragment], self._config.outer
        if reference is None:
            if outer.adoption == "blend" and counted_steps:
                theta.mul_(outer.adoption_blend).add_(new.to(self._device) * (1 - outer.adoption_blend))
            else:
                theta.copy_(new)
            self._count.restart(fragment)
            return
        # two operations in place: the sum commutes, so these are the bits of new + (θ - reference)
        theta.sub_(reference.to(self._device)).add_(new.to(self._device))
        self._count.count(fragment, counted_steps, counted_tokens)

    def load_all(self, parameters: Tensor) -> None:
        """Start from float32[all elements], the fragments in order; counters are zero afterwards."""
        for fragment, part in enumerate(fragment_views(parameters, self.fragments)):
            self.adopt(fragment, part, None, 0, 0)

    def export_state(self) -> dict[str, Tensor]:
        """Everything a resumed learner needs to continue with the same bits, as CPU tensors."""
        count = self._count
        position = [count.steps, count.tokens, count.window, self._progress_steps, self._state_steps]
        state = {
            "theta": self._theta.to("cpu", copy=True),
            "position": torch.tensor(position, dtype=torch.int64),
            "counted_from": torch.tensor(count.counted_from, dtype=torch.int64),
        }
        exported = export_state(self._optimizer)
        return state | {_OPTIMIZER_PREFIX + name: value for name, value in exported.items()}

    def import_state(self, state: dict[str, Tensor]) -> None:
        """Continue from `export_state`; raises LocalError if it belongs to another model."""
        theta, position, counted_from = (state.get(name) for name in ("theta", "position", "counted_from"))
        if theta is None or position is None or counted_from is None or theta.shape != self._theta.shape:
            raise LocalError("the saved learner state belongs to another run; remove it to start without")
        optimizer = {
            name.removeprefix(_OPTIMIZER_PREFIX): value
            for name, value in state.items()
            if name.startswith(_OPTIMIZER_PREFIX)
        }
        import_state(self._optimizer, optimizer)
        self._theta.copy_(theta)
        count = self._count
        count.steps, count.tokens, count.window, self._progress_steps, self._state_steps = position.tolist()
        count.counted_from = counted_from.tolist()


def make_learner(config: RunConfig, batches: Batches, device: str = "cpu") -> Learner:
    """The learner of a run: its model at version 0, cut into the run's fragments."""
    model = build_model(config.model, config.data.context_tokens, config.seed)
    fragments = split_fragments(parameter_specs(config.model), config.pace.fragments)
    return Learner(model, fragments, batches, config, device)


def fragment_views(parameters: Tensor, fragments: Sequence[FragmentLayout]) -> tuple[Tensor, ...]:
    """Cut a flat vector of all parameters into its fragments, without copying."""
    ends = tuple(accumulate(layout.elements for layout in fragments))
    return tuple(parameters[end - layout.elements : end] for layout, end in zip(fragments, ends, strict=True))


def _flatten(model: nn.Module, fragments: Sequence[FragmentLayout]) -> tuple[Tensor, Tensor]:
    """Move the parameters into one flat vector and give each a gradient inside another one."""
    named = dict(model.named_parameters())
    elements = sum(layout.elements for layout in fragments)
    device = next(iter(named.values())).device
    theta, gradient = torch.empty(elements, device=device), torch.zeros(elements, device=device)
    offset = 0
    for layout in fragments:
        for tensor in layout.tensors:
            parameter = named.pop(tensor.name)
            end = offset + tensor.elements
            view = theta[offset:end].view(tensor.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = gradient[offset:end].view(tensor.shape)
            offset = end
    if named:
        raise LocalError(f"the tensor {next(iter(named))} is in no fragment")
    return theta, gradient
