"""What one contribution alone does to the loss: a forward pass before and after, on a thread that yields to all others.

A model of its own, and the run's text, are built and read when the first contribution is appraised; until then, and in
runs without `trust.score_share`, nothing of this takes memory.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Event

import structlog
import torch
from torch import Tensor

from coordinator.chain.passes import windows_read
from coordinator.core.actions import Appraise
from coordinator.run.manifest import Manifest, RunConfig
from coordinator.trust.scores import Appraisal
from dht.errors import UsageError
from dht.identity import PeerId
from dht.statement import digest_of
from peer.data.windows import load_tokens, training_windows
from peer.learner.evaluation import FlatModel, heldout_loss
from peer.learner.gradient.batch_ahead import Batches
from peer.machine.local_files import LocalFiles
from peer.model.located import located
from peer.rounds.evaluation_loop import nice_worker
from peer.rounds.spot_checks import SpotChecker
from peer.storage.anchors import Anchors

log = structlog.get_logger(__name__)

WINDOWS = 2  # of the member's, and of nobody's
SEQUENCES = 4  # of each
GAIN_MAX = 10.0  # nats per token: one absurd contribution must not outweigh all others of a member for long
NOBODY = PeerId("")  # whose windows no learner trains on


Sides = tuple[list[Tensor], list[Tensor]]
"""Parameters before and after: float32[elements] per fragment, in order."""


def sides_of(action: Appraise, inspector: SpotChecker, anchors: Anchors) -> Sides | None:
    """Anchors as a contribution was made from them, and as it alone would leave them; None if something is gone."""
    gradient, base = inspector.contribution(action), anchors.served(action.key.fragment, action.base)
    if gradient is None or base is None:
        return None
    before, after = anchors.all_anchors(), anchors.all_anchors()
    before[action.key.fragment], after[action.key.fragment] = base.anchor, base.anchor - gradient
    return before, after


def gain_of(before: float, after: float) -> float:
    """How much lower a loss is, within ±GAIN_MAX; what makes it no number at all is as bad as can be."""
    return max(-GAIN_MAX, min(GAIN_MAX, before - after)) if math.isfinite(after) else -GAIN_MAX


class Appraiser:
    """Compares parameters on windows; `windows` gives those of a peer, or of NOBODY."""

    def __init__(self, config: RunConfig, windows: Callable[[PeerId], Batches], abandoned: Event | None = None) -> None:
        self._config = config
        self._windows = windows
        self._abandoned = abandoned

    @cached_property
    def _flat(self) -> FlatModel:
        return FlatModel(self._config, abandoned=self._abandoned)

    def appraise(self, sides: Sides, action: Appraise) -> Appraisal | None:
        """How much lower the loss is afterwards; None if it was no number, or the member names no windows."""
        windows = action.window_first, action.window_count
        if self._config.data.is_in_passes:
            windows = windows_read(*windows)
        if windows[1] <= 0:
            return None
        assigned = self._draw(action.peer, *windows, action.seed)
        other = self._draw(NOBODY, 0, 1 << 32, action.seed)
        losses = [self._losses(parameters, (assigned, other)) for parameters in sides]
        if not all(map(math.isfinite, losses[0])):
            return None
        return Appraisal(*(gain_of(was, is_now) for was, is_now in zip(*losses, strict=True)))

    def _draw(self, peer: PeerId, first: int, count: int, seed: bytes) -> Tensor:
        """Some sequences of some of these windows: int64, shape (sequences, context_tokens + 1)."""
        batches = self._windows(peer)
        numbers = [int.from_bytes(digest_of(seed, peer.encode(), bytes([one]))[:8], "big") for one in range(WINDOWS)]
        return torch.cat([batches.batch(first + number % count)[:SEQUENCES] for number in numbers])

    def _losses(self, parameters: Sequence[Tensor], windows: Sequence[Tensor]) -> list[float]:
        with self._flat.under(parameters) as model:
            return [heldout_loss(model, one) for one in windows]


class ScoringWorker:
    """Appraises for a real peer, one contribution after the other."""

    def __init__(self, manifest: Manifest, files: LocalFiles) -> None:
        self._manifest = manifest
        self._files = files
        self._appraiser: Appraiser | None = None
        self._worker = nice_worker("appraisal")
        self._closed = Event()
        self._useless = manifest.config.model.is_own  # such a model is its owner's process's only

    async def appraise(self, sides: Sides, action: Appraise) -> Appraisal | None:
        """`Appraiser.appraise` on its thread; None where this machine's text is not the run's."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._appraise, sides, action)

    def _appraise(self, sides: Sides, action: Appraise) -> Appraisal | None:
        if self._useless:
            return None
        try:
            self._appraiser = self._appraiser or self._make()
            return self._appraiser.appraise(sides, action)
        except (UsageError, RuntimeError, MemoryError, ValueError, ArithmeticError) as error:  # no text, no room for it
            log.warning("no_scores", reason=str(error))
            self._appraiser, self._useless = None, True
            return None

    def _make(self) -> Appraiser:
        files, run_key = self._files, self._manifest.run_id
        config = located(self._manifest.config, files.base, files.base_precision)
        data = load_tokens(config.data, config.model.vocabulary, files)
        if data.digest != self._manifest.data_digest:
            raise UsageError("this machine's text is not the run's")
        return Appraiser(config, lambda peer: training_windows(data.train, config, run_key, peer), self._closed)

    def close(self) -> None:
        """An appraisal under way is given up."""
        self._closed.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
