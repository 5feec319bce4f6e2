"""The mean loss of a batch and its gradient, without ever holding the logits of all tokens.

Logits take four bytes, several times over, for every token and word of the vocabulary: gigabytes for 128,000 words.
So the layers compute their output once. The head, loss and gradient follow for a few tokens at a time, which gives
the same sums. That needs a model whose logits are the product of its head alone: a trial with a few tokens tells.
Other models compute all logits at once.
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
PROCESSOR_LOGITS_AT_ONCE = 1 << 22  # 16 MiB, which fits a processor's caches
TRIAL_TOKENS = 8


@dataclass(frozen=True, slots=True)
class BodyAndHead:
    """A model in two parts: `head(body(input_ids=…)[0])` equals its logits, bit for bit."""

    body: nn.Module
    head: nn.Module

    @classmethod
    def of(cls, model: nn.Module) -> BodyAndHead | None:
        """Return the two parts of a model, or None if a trial shows that they are not all of it."""
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
    """The mean cross entropy in nats of each next token under a model, as in `peer.model.build.loss`.

    `tokens` are int64, shape (sequences, context_tokens + 1), on the model's device. If they are `marked`, the mean is
    over the tokens to learn (`peer.data.marks`).
    """

    def __init__(self, model: nn.Module, marked: bool = False) -> None:
        self._model = model
        self._marked = marked
        self.parts = BodyAndHead.of(model)
        self._cross_entropy: Callable[[Tensor, Tensor], Tensor] = summed_cross_entropy

    def compile(self, wanted: bool) -> None:
        """Have torch compile the loss and the layers, which are alike, so it compiles one; or undo that.

        Compiled layer by layer, attention stays causal without a mask. The first step then takes a while, and may raise
        any error of the compiler.
        """
        for layer in layers_of(self._model):
            layer._compiled_call_impl = None
            if wanted:
                layer.compile(dynamic=False)
        self._cross_entropy = torch.compile(summed_cross_entropy, dynamic=False) if wanted else summed_cross_entropy

    def value(self, tokens: Tensor) -> Tensor:
        """Return the loss, without a gradient."""
        if self.parts is None:
            return self._whole(tokens)
        hidden, targets = self._hidden(tokens), targets_of(tokens, self._marked)
        total = torch.zeros((), device=tokens.device)
        for piece, wanted in chunks(hidden, targets, self.parts.head):
            total += self._cross_entropy(self.parts.head(piece), wanted)
        return total / self._count(targets)

    def backward(self, tokens: Tensor, weight: float) -> Tensor:
        """Add the gradient of `weight` times the loss to the parameters'; returns `weight` times the loss.

        If you use autocast, call this inside it: weights that several pieces of a batch share are then cast once.
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
        if hidden.requires_grad:  # not if an adapter targets the head alone
            _follow(hidden, gradient)
        return total

    def _hidden(self, tokens: Tensor) -> Tensor:
        """Return the input of the head: (tokens, width)."""
        assert self.parts is not None
        inputs = inputs_of(tokens, self._marked)
        return cast(Tensor, self.parts.body(**inputs, use_cache=False)[0]).flatten(0, 1)

    def _whole(self, tokens: Tensor) -> Tensor:
        """Return the loss of a model that does not split into body and head."""
        logits = self._model(**inputs_of(tokens, self._marked), use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets_of(tokens, self._marked))

    def _count(self, targets: Tensor) -> int:
        return count_of(targets) if self._marked else len(targets)


def count_of(targets: Tensor) -> int:
    """Return the number of targets to learn, at least 1."""
    return max(1, int((targets != UNLEARNED).sum()))


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the longest module list in the model: its blocks."""
    lists: list[list[nn.Module]] = [list(one) for one in model.modules() if isinstance(one, nn.ModuleList)]
    return max(lists, key=len, default=[])


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy summed over tokens."""
    return functional.cross_entropy(logits.float(), targets, reduction="sum")


def _follow(value: Tensor, gradient: Tensor | None = None) -> None:
    """Run backward in the types of the forward pass: autocast must not cast again."""
    with torch.autocast(value.device.type, enabled=False):
        torch.autograd.backward([value], None if gradient is None else [gradient])


def chunks(hidden: Tensor, targets: Tensor, head: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tokens in pieces of about one size whose logits fit the limit; none shares memory with a gradient."""
    count = math.ceil(len(targets) / max(1, logits_at_once(hidden.is_cuda) // _vocabulary(head)))
    size = math.ceil(len(targets) / count)
    yield from zip(torch.split(hidden, size), torch.split(targets, size), strict=True)


def logits_at_once(on_gpu: bool) -> int:
    """Return how many logits are held at a time."""
    return LOGITS_AT_ONCE if on_gpu else PROCESSOR_LOGITS_AT_ONCE


def _vocabulary(head: nn.Module) -> int:
    return int(next(head.parameters()).shape[0])
