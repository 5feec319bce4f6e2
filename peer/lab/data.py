"""Text that differs by learner: parts of the standard library, divided unevenly (design §7, §12).

The usual construction for data that are not identically distributed: every package's text is cut into one slice per
learner, in proportions drawn from a Dirichlet distribution. With small α, each learner sees few packages.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass

import torch
from torch import Tensor

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.data.library import library_root, source_files
from peer.data.windows import is_heldout


def learner_texts(
    config: RunConfig,
    train: Tensor,
    learners: int,
    alpha: float | None,
    second_side: int = 0,
    hostile: Container[int] = (),
) -> list[Tensor]:
    """Return the text of each learner's windows: all text, or `dirichlet_texts` with this α.

    If `second_side` is set, return `side_texts`, the second for that many of the last learners. With α, the `hostile`
    have all text, and the honest have the same as without them.
    """
    if second_side:
        first, second = side_texts(config.data)
        return [first.train] * (learners - second_side) + [second.train] * second_side
    if alpha is None:
        return [train] * learners
    _check_library(config.data, "--noniid")
    honest = [number for number in range(learners) if number not in hostile]
    dealt = dict(zip(honest, dirichlet_texts(config.data, len(honest), alpha, config.seed), strict=True))
    return [dealt.get(number, train) for number in range(learners)]


def _check_library(spec: DataSpec, option: str) -> None:
    if spec.source != "stdlib" or spec.tokenizer_sha256:
        raise UsageError(
            f'{option} deals out the bytes of the standard library\'s packages; it needs data.source = "stdlib" and no '
            "tokenizer"
        )


@dataclass(frozen=True, slots=True)
class SideText:
    """The training and evaluation text of one side of a partition, uint8."""

    train: Tensor
    heldout: Tensor


def side_texts(spec: DataSpec) -> tuple[SideText, SideText]:
    """Return the standard library's packages as two sides of about equal length; raises UsageError for other data."""
    _check_library(spec, "--own-text")
    train, heldout = _packages(), _packages(heldout=True)
    sides: tuple[list[str], list[str]] = ([], [])
    for name in sorted(train, key=lambda name: (-len(train[name]), name)):
        min(sides, key=lambda names: sum(len(train[one]) for one in names)).append(name)
    found = []
    for names in sides:
        own, judged = (bytearray(b"".join(texts.get(name, b"") for name in names)) for texts in (train, heldout))
        if min(len(own), len(judged)) <= spec.context_tokens:
            raise UsageError("the standard library is too small to be dealt out to two sides; leave out --own-text")
        found.append(SideText(torch.frombuffer(own, dtype=torch.uint8), torch.frombuffer(judged, dtype=torch.uint8)))
    return found[0], found[1]


def dirichlet_texts(spec: DataSpec, learners: int, alpha: float, seed: int) -> list[Tensor]:
    """Return each learner's training text, uint8, which covers every byte once. Raises UsageError if one gets none."""
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


def _packages(heldout: bool = False) -> dict[str, bytes]:
    """Return training or held-out text by top-level package; single modules by their first letter."""
    found: defaultdict[str, bytearray] = defaultdict(bytearray)
    for path, content in source_files(library_root()):
        if is_heldout(path) == heldout:
            found[path.partition("/")[0] if "/" in path else path[0]] += content
    return {name: bytes(found[name]) for name in sorted(found)}
