"""The mean loss of a batch and its gradient, without ever holding the logits of all tokens.

Logits take four bytes, several times over, for every token and word of the vocabulary: gigabytes for 128,000 words.
So the layers compute their output once, and the head, loss and gradient follow for some tokens after others, which
gives the same sums. That needs a model whose logits are its head's product alone: a trial with a few tokens says so.
Other models go through whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from peer.data.marks import UNLEARNED, inputs_of, targets_of

LOGITS_AT_ONCE = 1 << 26  # on a GPU: a quarter of a gigabyte in float32
PROCESSOR_LOGITS_AT_ONCE = 1 << 22  # 16 MiB: what a processor's caches hold
TRIAL_TOKENS = 8


@dataclass(frozen=True, slots=True)
class BodyAndHead:
    """A model in two: `head(body(input_ids=…)[0])` are its logits, bit for bit."""

    body: nn.Module
    head: nn.Module

    @classmethod
    def of(cls, model: nn.Module) -> BodyAndHead | None:
        """None unless a trial shows that these are all of it."""
        body = getattr(model, "base_model", None)
        head = cast(Any, model).get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        if not isinstance(body, nn.Module) or not isinstance(head, nn.Module) or body is model:
            return None
        device = next(model.parameters()).device
        tokens = torch.arange(TRIAL_TOKENS, device=device)[None] % _vocabulary(head)
        with torch.no_grad():
            apart = head(body(input_ids=tokens, use_cache=False)[0])
            whole = model(input_ids=tokens, use_cache=False).logits
        return cls(body, head) if torch.equal(apart, whole) else None


class Objective:
    """Mean cross entropy in nats of each next token under a model, as `peer.model.build.loss` has it.

    `tokens` are int64, shape (sequences, context_tokens + 1), on the model's device. If they are `marked`, the mean is
    over those that are learned (`peer.data.marks`).
    """

    def __init__(self, model: nn.Module, marked: bool = False) -> None:
        self._model = model
        self._marked = marked
        self.parts = BodyAndHead.of(model)
        self._cross_entropy: Callable[[Tensor, Tensor], Tensor] = summed_cross_entropy

    def compile(self, wanted: bool) -> None:
        """Have torch compile the layers, all alike and so only one, and the loss; or no longer.

        Layer by layer, attention stays causal without a mask. The first step then takes a while, and may raise
        whatever the compiler does.
        """
        for layer in layers_of(self._model):
            layer._compiled_call_impl = None
            if wanted:
                layer.compile(dynamic=False)
        self._cross_entropy = torch.compile(summed_cross_entropy, dynamic=False) if wanted else summed_cross_entropy

    def value(self, tokens: Tensor) -> Tensor:
        """The loss, without a gradient."""
        if self.parts is None:
            return self._whole(tokens)
        hidden, targets = self._hidden(tokens), targets_of(tokens, self._marked)
        total = torch.zeros((), device=tokens.device)
        for piece, wanted in chunks(hidden, targets, self.parts.head):
            total += self._cross_entropy(self.parts.head(piece), wanted)
        return total / self._count(targets)

    def backward(self, tokens: Tensor, weight: float) -> Tensor:
        """Add the gradient of `weight` times the loss to the parameters'; returns `weight` times the loss.

        Call it under autocast, if at all: weights that several pieces of a batch share are then cast once.
        """
        if self.parts is None:
            value = self._whole(tokens) * weight
            _follow(value)
            return value.detach()
        hidden, targets = self._hidden(tokens), targets_of(tokens, self._marked)
        head, kept, count = self.parts.head, hidden.detach(), self._count(targets)
        gradient = torch.empty_like(kept)
        total = torch.zeros((), device=tokens.device)
        done = 0
        for piece, wanted in chunks(kept, targets, head):
            value = self._cross_entropy(head(piece.requires_grad_()), wanted) / count * weight
            _follow(value)
            assert piece.grad is not None
            gradient[done : done + len(piece)] = piece.grad
            total += value.detach()
            done += len(piece)
        _follow(hidden, gradient)
        return total

    def _hidden(self, tokens: Tensor) -> Tensor:
        """What the head is shown: (tokens, width)."""
        assert self.parts is not None
        inputs = inputs_of(tokens, self._marked)
        return cast(Tensor, self.parts.body(**inputs, use_cache=False)[0]).flatten(0, 1)

    def _whole(self, tokens: Tensor) -> Tensor:
        """The loss of a model that is not in two."""
        logits = self._model(**inputs_of(tokens, self._marked), use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets_of(tokens, self._marked))

    def _count(self, targets: Tensor) -> int:
        return count_of(targets) if self._marked else len(targets)


def count_of(targets: Tensor) -> int:
    """How many are learned, or one if none is."""
    return max(1, int((targets != UNLEARNED).sum()))


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules in there: a model's blocks."""
    lists: list[list[nn.Module]] = [list(one) for one in model.modules() if isinstance(one, nn.ModuleList)]
    return max(lists, key=len, default=[])


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum over tokens."""
    return functional.cross_entropy(logits.float(), targets, reduction="sum")


def _follow(value: Tensor, gradient: Tensor | None = None) -> None:
    """Backward, in the types of the way forward: it must not be cast once more."""
    with torch.autocast(value.device.type, enabled=False):
        torch.autograd.backward([value], None if gradient is None else [gradient])


def chunks(hidden: Tensor, targets: Tensor, head: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens in pieces of about one size, with so few logits that they fit; none shares memory with a gradient."""
    count = math.ceil(len(targets) / max(1, logits_at_once(hidden.is_cuda) // _vocabulary(head)))
    size = math.ceil(len(targets) / count)
    yield from zip(torch.split(hidden, size), torch.split(targets, size), strict=True)


def logits_at_once(on_gpu: bool) -> int:
    """How many of them are held."""
    return LOGITS_AT_ONCE if on_gpu else PROCESSOR_LOGITS_AT_ONCE


def _vocabulary(head: nn.Module) -> int:
    return int(next(head.parameters()).shape[0])
