"""How good the global model is: loss on held-out text, and a sample of what it writes."""

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

TEMPERATURE = 0.8  # below 1: a small model's unlikely bytes are mostly wrong
GOLDEN = (math.sqrt(5) - 1) / 2

Enough = Callable[[], bool]
"""Whether an answer from what was seen so far will do."""


def never() -> bool:
    """All of it is wanted."""
    return False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A held-out loss in nats per token; `error` is its standard error if only a part of the text was looked at."""

    loss: float
    error: float | None = None


class AbandonedError(Exception):
    """Nobody wants to know any more what a model would have said."""


class FlatModel:
    """A model over flat fragments that somebody else holds; on the CPU it takes no copy of them.

    Once `abandoned` is set it says nothing more: a question under way gets an AbandonedError after one pass.
    """

    def __init__(self, config: RunConfig, device: str = "cpu", abandoned: Event | None = None) -> None:
        self.fragments = layouts_of(config)
        self._device = device
        self._model = build_hollow_run_model(config).to(device).eval()
        self._trained = [one for one in self._model.parameters() if one.requires_grad]
        if abandoned is not None:
            embedding = cast(Any, self._model).get_input_embeddings()  # whatever is asked of a model begins there
            embedding.register_forward_pre_hook(partial(_unless, abandoned))

    @contextmanager
    def under(self, anchors: Sequence[Tensor]) -> Iterator[nn.Module]:
        """The model with these parameters within the block: float32[elements] per fragment, in order."""
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
    """Judges flat fragments on the run's held-out text."""

    def __init__(self, config: RunConfig, heldout: Tensor, device: str = "cpu", abandoned: Event | None = None) -> None:
        """`heldout` is uint8, shape (tokens,); which of it is used depends on the run only."""
        self._flat = FlatModel(config, device, abandoned)
        self._heldout = heldout
        self._device = device
        self.fragments = self._flat.fragments
        self._context_tokens = config.data.context_tokens
        self._windows = evaluation_windows(heldout, config.data, config.seed).to(device)

    def on_other(self, config: RunConfig) -> Evaluator:
        """One with the same model that looks at what this config names of the same text."""
        other = copy(self)
        other._windows = evaluation_windows(self._heldout, config.data, config.seed).to(self._device)
        return other

    def loss(self, anchors: Sequence[Tensor]) -> float:
        """Mean nats per held-out token under these parameters: float32[elements] per fragment, in order."""
        return self.judge(anchors, heldout_loss)

    def estimate(self, anchors: Sequence[Tensor], enough: Enough) -> Estimate:
        """`estimated_loss` under these parameters."""
        with self._flat.under(anchors) as model:
            return estimated_loss(model, self._windows, enough)

    def judge(self, anchors: Sequence[Tensor], measure: Callable[[nn.Module, Tensor], float]) -> float:
        """`measure` of the model under these parameters and of int64 windows, shape (sequences, context_tokens + 1)."""
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
        """`following_tokens` under these parameters, so many of them; fewer if there are `enough` before."""
        with self._flat.under(anchors) as model:
            following = following_tokens(model, given, generator, self._context_tokens)
            return list(islice(takewhile(lambda _: not enough(), following), tokens))


def passes(model: nn.Module, windows: Tensor) -> tuple[Tensor, ...]:
    """Windows as they go through the model at once, shape (sequences, tokens) each."""
    vocabulary = int(getattr(getattr(model, "config", None), "vocab_size", 1))
    parameters = sum(one.numel() for one in model.parameters())
    return torch.split(windows, sequences_per_pass(windows.shape[1], vocabulary, parameters))


@torch.inference_mode()
def heldout_loss(model: nn.Module, windows: Tensor) -> float:
    """Mean nats per predicted token; `windows` is int64, shape (sequences, context_tokens + 1), marked or not."""
    return estimated_loss(model, windows, never).loss


@torch.inference_mode()
def estimated_loss(model: nn.Module, windows: Tensor, enough: Enough) -> Estimate:
    """`heldout_loss`, or after two passes as soon as there is `enough`, from windows that are spread over the text."""
    marked = has_marks(windows)
    parts, objective, found = passes(model, windows), Objective(model, marked), dict[int, float]()
    for at in sorted(range(len(parts)), key=lambda at: at * GOLDEN % 1):  # wherever it ends, no stretch is left out
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
    """Mean nats per predicted token of each window, float32[sequences], and how many these are, int64[sequences].

    `windows` as for `heldout_loss`.
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
    """Share of predicted tokens that are the model's first choice; `windows` as for `heldout_loss`."""
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
    """Tokens without end that follow the `given` ones, drawn on the CPU; at temperature 0 the likeliest."""
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
