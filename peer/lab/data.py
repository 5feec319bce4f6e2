"""Text that differs from learner to learner: parts of the standard library, dealt out unevenly (design §7, §12).

The usual construction for data that are not identically distributed: every package's text is cut into one slice per
learner, in proportions drawn from a Dirichlet distribution. Small α: each learner sees few packages.
"""

from __future__ import annotations

import random
import sysconfig
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor

from coordinator.manifest import DataSpec, RunConfig
from dht.errors import UsageError
from peer.data import is_heldout, source_files


def learner_texts(config: RunConfig, train: Tensor, learners: int, alpha: float | None) -> list[Tensor]:
    """What each learner draws its windows from: all text, or `dirichlet_texts` with this α."""
    if alpha is None:
        return [train] * learners
    if config.data.source != "stdlib":
        raise UsageError('--noniid deals out the standard library\'s packages; it needs data.source = "stdlib"')
    return dirichlet_texts(config.data, learners, alpha, config.seed)


def dirichlet_texts(spec: DataSpec, learners: int, alpha: float, seed: int) -> list[Tensor]:
    """Training text of every learner, uint8; every byte belongs to one of them. Raises UsageError if one gets none."""
    draw = random.Random(seed)
    texts = [bytearray() for _ in range(learners)]
    for package in _packages().values():
        shares = [draw.gammavariate(alpha, 1.0) for _ in range(learners)]
        total, start, reached = sum(shares), 0, 0.0
        for text, share in zip(texts, shares, strict=True):
            reached += share
            end = round(len(package) * reached / total) if total > 0 else 0
            text += package[start:end]
            start = end
    if min(map(len, texts)) <= spec.context_tokens:
        raise UsageError(f"with --noniid {alpha:g} a learner is left without text; choose a larger value")
    return [torch.frombuffer(text, dtype=torch.uint8) for text in texts]


def _packages() -> dict[str, bytes]:
    """Training text by top-level package; single modules by their first letter."""
    found: defaultdict[str, bytearray] = defaultdict(bytearray)
    for path, content in source_files(Path(sysconfig.get_path("stdlib"))):
        if not is_heldout(path):
            found[path.partition("/")[0] if "/" in path else path[0]] += content
    return {name: bytes(found[name]) for name in sorted(found)}
