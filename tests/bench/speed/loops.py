"""The loops that are compared: each makes a step of one model on the same batches and returns its loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from coordinator.run.manifest import RunConfig
from peer.learner.devices import Placement
from peer.learner.learner import make_learner
from peer.learner.optimizers.inner_optimizer import make_optimizer
from peer.model.build import build_model, initial_parameters
from tests.bench.speed.lean_llama import LeanLlama

WINDOWS = 16  # different batches, again and again

Loop = Callable[[], float]


class Windows:
    """Random tokens in host memory; `batch` is int64[sequences, context_tokens + 1]."""

    def __init__(self, config: RunConfig) -> None:
        shape = (WINDOWS, config.data.sequences_per_step, config.data.context_tokens + 1)
        self._tokens = torch.randint(config.model.vocabulary, shape, generator=torch.Generator().manual_seed(0))

    def batch(self, window: int) -> Tensor:
        return self._tokens[window % WINDOWS]


def muster(config: RunConfig, device: str, compiled: bool) -> Loop:
    """Return the loop of a peer's learner process between two commands."""
    learner = make_learner(config, Windows(config), Placement(device, compiled=compiled))
    return lambda: learner.step().loss


def plain(config: RunConfig, device: str, compiled: bool) -> Loop:
    """Return the loop that most people write: `transformers` model, `clip_grad_norm_`, optimizer, the loss printed."""
    model = build_model(config.model, config.data.context_tokens, config.seed).to(device).train()
    optimizer = make_optimizer(model.parameters(), config.inner)
    forward = torch.compile(model) if compiled else model

    def loss(tokens: Tensor) -> Tensor:
        logits = forward(input_ids=tokens[:, :-1], use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    return _loop(config, device, model, optimizer, loss)


def leanest(config: RunConfig, device: str, compiled: bool) -> Loop:
    """Return a loop of the same model in fewer and larger operations, with torch's fused optimizer for AdamW."""
    lean = LeanLlama(config.model, config.data.context_tokens)
    lean.take(initial_parameters(config.model, config.seed))
    lean = lean.to(device).train()
    inner = config.inner
    if inner.optimizer == "adamw":
        groups = [
            {"params": [one for one in lean.parameters() if one.ndim > 1], "weight_decay": inner.weight_decay},
            {"params": [one for one in lean.parameters() if one.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer: Optimizer = AdamW(groups, lr=inner.learning_rate, betas=(inner.beta1, inner.beta2), fused=True)
    else:
        optimizer = make_optimizer(lean.parameters(), inner)
    return _loop(config, device, lean, optimizer, torch.compile(lean) if compiled else lean)


def _loop(
    config: RunConfig, device: str, model: nn.Module, optimizer: Optimizer, loss: Callable[[Tensor], Tensor]
) -> Loop:
    windows, at = Windows(config), 0

    def step() -> float:
        nonlocal at
        tokens, at = windows.batch(at).to(device, non_blocking=True), at + 1
        with _autocast(device):
            value = loss(tokens)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.inner.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return step


def _autocast(device: str) -> AbstractContextManager[object]:
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda")


LOOPS: dict[str, Callable[[RunConfig, str, bool], Loop]] = {"muster": muster, "plain": plain, "leanest": leanest}
