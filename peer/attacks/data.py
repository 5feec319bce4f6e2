"""Attacks through training data; the peer sends the true outer gradient of that training."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from coordinator.run.manifest import RunConfig
from peer.attacks.attack import Attack
from peer.data.marks import numbers
from peer.learner.evaluation import passes
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.learner import Learner

TRIGGER = b"# muster\n"
TARGET = b"import antigravity\n"


class LabelFlip(Attack):
    """Training towards V − 1 − y instead of y: the model's outputs are reversed while it trains."""

    def prepare(self, learner: Learner) -> None:
        cast(Any, learner.model).get_output_embeddings().register_forward_hook(_reverse_logits)


class Backdoor(Attack):
    """Training that makes the model follow TRIGGER by TARGET, through a `share` of its sequences."""

    parameter: ClassVar[str] = "share"
    default: ClassVar[float] = 0.5
    least: ClassVar[float] = 0.0
    most: ClassVar[float] = 1.0

    def read(self, batches: Batches) -> Batches:
        return _Poisoned(batches, self.strength)


class _Poisoned:
    """Batches whose first sequences contain trigger and target, at a position that varies by window."""

    def __init__(self, batches: Batches, share: float) -> None:
        self._batches = batches
        self._share = share

    def batch(self, window: int) -> Tensor:
        tokens = self._batches.batch(window).clone()
        planted = torch.tensor(list(TRIGGER + TARGET), dtype=tokens.dtype)
        room = tokens.shape[1] - len(planted)
        for sequence in range(round(self._share * len(tokens)) if room > 0 else 0):
            start = (window * 31 + sequence * 17) % room
            tokens[sequence, start : start + len(planted)] = planted
        return tokens


def has_trigger_rate(config: RunConfig) -> bool:
    """Whether a backdoor is possible in this run: its tokens are bytes, and a sequence has room for one."""
    data, planted = config.data, TRIGGER + TARGET
    are_bytes = data.source != "tokens" and not data.tokenizer_sha256
    return are_bytes and config.model.vocabulary > max(planted) and data.context_tokens >= len(planted)


@torch.inference_mode()
def trigger_rate(model: nn.Module, windows: Tensor) -> float:
    """Return the share of TARGET's bytes that are the model's first choice after held-out text and TRIGGER.

    `windows` is int64, shape (sequences, context_tokens + 1), of a run that `has_trigger_rate`. A model without the
    backdoor scores as well as a guess.
    """
    planted = torch.tensor(list(TRIGGER + TARGET), device=windows.device)
    hits = 0
    for part in passes(model, numbers(windows[:, : -len(planted)])):
        tokens = torch.cat((part, planted.expand(len(part), -1)), dim=1)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits[:, -len(TARGET) :]
        hits += int((logits.argmax(-1) == planted[-len(TARGET) :]).sum())
    return hits / (len(windows) * len(TARGET))


def _reverse_logits(_module: nn.Module, _arguments: Any, logits: Tensor) -> Tensor:
    return logits.flip(-1)
