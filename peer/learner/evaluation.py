"""The quality of the global model: its loss on held-out text, and samples of the text it writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from statistics import stdev
from threading import Event
from typing import Any, cast

import torch
from torch import Tensor, nn

from coordinator.run.manifest import RunConfig
from peer.data.marks import UNLEARNED, has_marks, inputs_of, targets_of, weight_of
from peer.data.windows import evaluation_windows
from peer.learner.gradient.objective import Objective
from peer.learner.memory_estimate import sequences_per_pass
from peer.model.adapter import build_hollow_run_model
from peer.numerics.fragments import named_tensors, whole_tensors
from peer.storage.anchors import layouts_of

TEMPERATURE = 0.8  # below 1, because most of a small model's unlikely bytes are mistakes
GOLDEN = (math.sqrt(5) - 1) / 2

Enough = Callable[[], bool]
"""Returns whether the part evaluated so far is enough for an answer."""


def never() -> bool:
    """Ask for the whole evaluation."""
    return False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A held-out loss in nats per token; `error` is its standard error if only part of the text was evaluated."""

    loss: float
    error: float | None = None


class AbandonedError(Exception):
    """The evaluation was abandoned because its result is no longer wanted."""


class FlatModel:
    """A model over flat fragments that the caller holds; on the CPU it makes no copy of them.

    Once `abandoned` is set, a running evaluation raises AbandonedError at its next pass.
    """

    def __init__(self, config: RunConfig, device: str = "cpu", abandoned: Event | None = None) -> None:
        self.fragments = layouts_of(config)
        self._device = device
        self._model = build_hollow_run_model(config).to(device).eval()
        self._trained = [one for one in self._model.parameters() if one.requires_grad]
        if abandoned is not None:
            embedding = cast(Any, self._model).get_input_embeddings()  # every forward pass begins there
            embedding.register_forward_pre_hook(partial(_unless, abandoned))

    @contextmanager
    def under(self, anchors: Sequence[Tensor]) -> Iterator[nn.Module]:
        """Yield the model with these parameters: float32[elements] per fragment, in order."""
        named = named_tensors(self._model)
        try:
            for name, values in whole_tensors(self.fragments, anchors).items():
                named[name].data = values.to(self._device)
            yield self._model
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for parameter in self._trained:
            parameter.data = torch.empty(0, device=self._device)


def _unless(abandoned: Event, *_: object) -> None:
    if abandoned.is_set():
        raise AbandonedError


class Evaluator:
    """The evaluator of flat fragments on the run's held-out text."""

    def __init__(self, config: RunConfig, heldout: Tensor, device: str = "cpu", abandoned: Event | None = None) -> None:
        """`heldout` is uint8, shape (tokens,); the windows taken from it depend on the run only."""
        self._flat = FlatModel(config, device, abandoned)
        self._heldout = heldout
        self._device = device
        self.fragments = self._flat.fragments
        self._context_tokens = config.data.context_tokens
        self._windows = evaluation_windows(heldout, config.data, config.seed).to(device)

    def on_other(self, config: RunConfig) -> Evaluator:
        """Return an evaluator with the same model that takes the windows `config` names from the same text."""
        other = copy(self)
        other._windows = evaluation_windows(self._heldout, config.data, config.seed).to(self._device)
        return other

    def loss(self, anchors: Sequence[Tensor]) -> float:
        """Return the mean nats per held-out token under these parameters: float32[elements] per fragment, in order."""
        return self.judge(anchors, heldout_loss)

    def estimate(self, anchors: Sequence[Tensor], enough: Enough) -> Estimate:
        """Return `estimated_loss` under these parameters."""
        with self._flat.under(anchors) as model:
            return estimated_loss(model, self._windows, enough)

    def judge(self, anchors: Sequence[Tensor], measure: Callable[[nn.Module, Tensor], float]) -> float:
        """Return `measure` of the model under these parameters and windows, int64[sequences, context_tokens + 1]."""
        with self._flat.under(anchors) as model:
            return measure(model, self._windows)

    def sample(
        self,
        anchors: Sequence[Tensor],
        given: list[int],
        tokens: int,
        generator: torch.Generator,
        enough: Enough = never,
    ) -> list[int]:
        """Return `tokens` of `following_tokens` under these parameters, or fewer once there are `enough`."""
        with self._flat.under(anchors) as model:
            following = following_tokens(model, given, generator, self._context_tokens)
            return list(islice(takewhile(lambda _: not enough(), following), tokens))


def passes(model: nn.Module, windows: Tensor) -> tuple[Tensor, ...]:
    """Split windows into forward passes of shape (sequences, tokens) each."""
    vocabulary = int(getattr(getattr(model, "config", None), "vocab_size", 1))
    parameters = sum(one.numel() for one in model.parameters())
    return torch.split(windows, sequences_per_pass(windows.shape[1], vocabulary, parameters))


@torch.inference_mode()
def heldout_loss(model: nn.Module, windows: Tensor) -> float:
    """Return the mean nats per predicted token; `windows` is int64[sequences, context_tokens + 1], marked or not."""
    return estimated_loss(model, windows, never).loss


@torch.inference_mode()
def estimated_loss(model: nn.Module, windows: Tensor, enough: Enough) -> Estimate:
    """Return `heldout_loss`, or an estimate from windows across the text once `enough` holds after two passes."""
    marked = has_marks(windows)
    parts, objective, found = passes(model, windows), Objective(model, marked), dict[int, float]()
    for at in sorted(range(len(parts)), key=lambda at: at * GOLDEN % 1):  # any prefix is spread over the text
        found[at] = objective.value(parts[at]).item()
        if len(found) > 1 and enough():
            break
    total = 0.0
    for at in sorted(found):
        total += found[at] * weight_of(parts[at], marked)
    if len(found) == len(parts):
        return Estimate(total / weight_of(windows, marked))
    mean = total / sum(weight_of(parts[at], marked) for at in found)
    error = stdev(found.values()) / math.sqrt(len(found)) if math.isfinite(mean) else None
    return Estimate(mean, error)


@torch.inference_mode()
def window_losses(model: nn.Module, windows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean nats per predicted token of each window, float32[sequences], and their number, int64[sequences].

    `windows` is as for `heldout_loss`.
    """
    marked, found, counts = has_marks(windows), list[Tensor](), list[Tensor]()
    for part in passes(model, windows):
        logits = model(**inputs_of(part, marked), use_cache=False).logits.float()
        targets = targets_of(part, marked)
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
        counts.append((targets != UNLEARNED).view(len(part), -1).sum(1))
        found.append(nats.view(len(part), -1).sum(1) / counts[-1].clamp(min=1))
    return torch.cat(found), torch.cat(counts)


@torch.inference_mode()
def next_token_accuracy(model: nn.Module, windows: Tensor) -> float:
    """Return the share of predicted tokens that are the model's first choice; `windows` is as for `heldout_loss`."""
    marked, right = has_marks(windows), 0
    for part in passes(model, windows):
        choices = model(**inputs_of(part, marked), use_cache=False).logits.argmax(-1)
        right += int((choices.flatten() == targets_of(part, marked)).sum())
    return right / (weight_of(windows, marked) * (1 if marked else windows.shape[1] - 1))


def following_tokens(
    model: nn.Module,
    given: list[int],
    generator: torch.Generator,
    context_tokens: int,
    temperature: float = TEMPERATURE,
) -> Iterator[int]:
    """Yield tokens without end that follow the `given` ones, sampled on the CPU; temperature 0 takes the likeliest."""
    written, device = list(given), next(model.parameters()).device
    while True:
        with torch.inference_mode():
            seen = torch.tensor([written[-context_tokens:]], device=device)
            logits = model(input_ids=seen, use_cache=False).logits[0, -1].float().cpu()
        if temperature == 0:
            written.append(int(logits.argmax()))
        else:
            chances = torch.softmax(logits / temperature, dim=-1)
            written.append(int(torch.multinomial(chances, 1, generator=generator)))
        yield written[-1]
