"""A worker's model and optimizer as flat vectors, so that its state is sent in a few calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coordinator.run.manifest import RunConfig
from peer.data.windows import TrainingWindows, load_tokens
from peer.model.build import build_model, loss, parameter_specs
from peer.model.flat_parameters import FlatParameters
from peer.numerics.fragments import split_fragments
from tests.bench.elastic.rendezvous import Held


class Replica:
    """Trains one copy of the run's model with AdamW, as torch has it."""

    def __init__(self, config: RunConfig, name: str) -> None:
        self._windows = TrainingWindows(load_tokens(config.data).train, config.data, bytes(32), name)
        self._model = build_model(config.model, config.data.context_tokens, config.seed).train()
        fragments = split_fragments(parameter_specs(config.model), config.pace.fragments)
        self._flat = FlatParameters(self._model, fragments, "float32", "cpu")
        whole = nn.Parameter(self._flat.values)
        whole.grad = self._flat.gradient
        inner = config.inner
        self._optimizer = torch.optim.AdamW(
            [whole], lr=inner.learning_rate, betas=(inner.beta1, inner.beta2), weight_decay=inner.weight_decay
        )
        moments = torch.zeros_like(self._flat.values), torch.zeros_like(self._flat.values)
        self._count = torch.zeros(())
        self._optimizer.state[whole] = dict(
            zip(("step", "exp_avg", "exp_avg_sq"), (self._count, *moments), strict=True)
        )
        self._made_in = torch.zeros((), dtype=torch.int64)
        self.state: tuple[Tensor, ...] = (self._flat.values, *moments, self._count, self._made_in)
        self.gradient_of: Held | None = None  # the state that `gradient` was computed on

    @property
    def held(self) -> Held:
        return Held(int(self._made_in), int(self._count))

    @property
    def gradient(self) -> Tensor:
        return self._flat.gradient

    def backward(self) -> None:
        """Compute the gradient of the present state, on the worker's own batch."""
        self.gradient.zero_()
        loss(self._model, self._windows.batch(self.held.step)).backward()
        self.gradient_of = self.held

    def step(self, gradient: Tensor, generation: int) -> None:
        """Make a step by the mean gradient of all members of this generation."""
        self.gradient.copy_(gradient)
        self._optimizer.step()
        self._made_in.fill_(generation)
