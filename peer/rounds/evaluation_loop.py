"""The host's evaluations: held-out loss of the certified anchors, on a low-priority thread."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import structlog
import torch
from torch import Tensor

from coordinator.run.manifest import RunConfig
from coordinator.views.evaluation import Evaluation
from peer.data.text_codec import TextCodec, first_words, run_text_codec
from peer.data.token_files import TokenData
from peer.learner.evaluation import Enough, Estimate, Evaluator, never
from peer.machine.heap import give_back_freed
from peer.machine.text import first_line
from peer.rounds.public_status import thinned

Answer = TypeVar("Answer")

NICENESS = 10
SAMPLE_TOKENS = 240
SAMPLE_TOKENS_MIN = 16  # less does not show how the model writes
SAMPLE_EVERY_SECONDS = 60.0  # during the run
LIVE_SAMPLE_SECONDS = 2.0  # of a core or of a GPU, for each
CYCLES = 2  # over all fragments, between two evaluations
BUSY_SHARE = 0.1  # evaluations take at most this share of a core, or of a GPU
REST_SECONDS_MIN = 0.2
LOOK_SECONDS = 30.0  # after this, an evaluation uses only the part of the text that it has seen
SAMPLE_SECONDS = 10.0  # after this, a sample of text is long enough
LAST_SECONDS_MAX = 90.0  # a machine that is too busy for two passes in this time skips the last evaluation
STALE_BYTES_MIN, STALE_SHARE_MAX = 16 << 20, 0.125  # memory of replaced anchors that one may keep; of the model
QUICK_SHARE = 8  # evaluations during the run use one in this many held-out windows
ONE_CORE_OPERATIONS = 1e11  # up to this many for an evaluation, threads wait for each other longer than they save
PROCESSOR = "cpu"
EVALUATIONS_KEPT = 1024  # a snapshot holds them all; beyond this, every second one is dropped

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunPosition:
    """The position of a run; `complete` if the newest version of every fragment is here."""

    versions: int
    tokens: int
    wall_seconds: float
    complete: bool


class EvaluationLoop:
    """Evaluates whenever enough versions have passed. Keeps a bounded number of results, however long the run is."""

    def __init__(
        self,
        config: RunConfig,
        data: TokenData,
        anchors: Callable[[], list[Tensor]],
        clock: Callable[[], float] = time.monotonic,
        text_codec: Callable[[], TextCodec | None] | None = None,
        device: str = PROCESSOR,
    ) -> None:
        """`text_codec` returns how the run's tokens are decoded; without it, only byte tokens are."""
        self._config = config
        self._text_codec = text_codec or (lambda: run_text_codec(config, None))
        self._anchors = anchors
        self._clock = clock
        self._worker = nice_worker("evaluation")
        self._closed = threading.Event()
        self._hurried = threading.Event()  # set to end the evaluation under way with the part that it has seen
        self._heldout = data.heldout
        self._spent_seconds = 0.0  # time of a core or of a GPU
        self._place(device)
        self.found: list[Evaluation] = []
        self.newest_text = ""  # written by the model
        self._looked_at = -1  # number of versions at the last evaluation of all text

    def _place(self, device: str) -> None:
        """Evaluate on this device from now on."""
        config = self._config
        quick = config.data.model_copy(
            update={"evaluation_tokens": max(256, config.data.evaluation_tokens // QUICK_SHARE)}
        )
        self._device = device
        self._full = Evaluator(config, self._heldout, device, self._closed)
        self._quick = self._full.on_other(config.model_copy(update={"data": quick}))

    async def run(self, position: Callable[[], RunPosition]) -> None:
        """Evaluate once in full, then quickly, sometimes with a sample; rest in proportion to the cost of each."""
        await self.evaluate(position(), full=True)
        loop = asyncio.get_running_loop()
        writes_at = loop.time() + SAMPLE_EVERY_SECONDS
        while True:
            started, spent, now = loop.time(), self._spent_seconds, position()
            if now.complete and now.versions >= self.found[-1].versions + CYCLES * self._config.pace.fragments:
                await self.evaluate(now, full=False)
                if started >= writes_at:
                    await self.sample(LIVE_SAMPLE_SECONDS)
                    writes_at = started + SAMPLE_EVERY_SECONDS
            await asyncio.sleep(max(REST_SECONDS_MIN, (self._spent_seconds - spent) / BUSY_SHARE))

    async def evaluate(self, position: RunPosition, full: bool) -> Evaluation:
        """Evaluate the current anchors and return their loss in nats per token.

        Ends with a part of the text if all of it takes too long. It also ends early when much of these anchors has been
        replaced meanwhile, so that there is never a second model in memory.
        """
        anchors = self._anchors()

        def look() -> Estimate:
            late, evaluator = self._after(LOOK_SECONDS), (self._full if full else self._quick)
            return evaluator.estimate(anchors, lambda: late() or self._is_stale(anchors))

        found = await self._run(look)
        evaluation = Evaluation(
            versions=position.versions,
            tokens_certified=position.tokens,
            wall_seconds=position.wall_seconds,
            loss=found.loss,
            error=found.error,
        )
        self._keep(evaluation)
        return evaluation

    async def look_last(self, position: RunPosition, seconds_max: float = LAST_SECONDS_MAX) -> None:
        """Evaluate all held-out text and write a sample, once, at the end of a run. Hurries the evaluation under way.

        A machine that is too busy to finish in this time keeps its earlier results.
        """
        if self._looked_at == position.versions:
            return
        self._hurried.set()
        self._worker.submit(self._hurried.clear)
        try:
            async with asyncio.timeout(seconds_max):
                await self.evaluate(position, full=True)
                await self.sample()
                self._looked_at = position.versions
        except TimeoutError:
            log.warning("last_evaluation_given_up", seconds=seconds_max)

    def _keep(self, evaluation: Evaluation) -> None:
        """Append a result and thin out old ones. The first and the last always stay, because reports compare them."""
        self.found.append(evaluation)
        if len(self.found) > EVALUATIONS_KEPT:
            self.found = list(thinned(self.found, EVALUATIONS_KEPT // 2))

    async def loss(self, anchors: Sequence[Tensor]) -> float:
        """Return the loss of other anchors, float32[elements] per fragment, on all held-out windows, in nats/token."""
        return (await self._run(lambda: self._full.estimate(anchors, never))).loss

    async def sample(self, spent_seconds_max: float = SAMPLE_SECONDS) -> str:
        """Let the model write and return its newest text; empty if this run's tokens cannot be decoded.

        A machine that is too busy to write enough of it keeps the previous text, if any.
        """
        anchors = self._anchors()
        self.newest_text = await self._run(lambda: self._written(anchors, spent_seconds_max)) or self.newest_text
        return self.newest_text

    def _written(self, anchors: Sequence[Tensor], spent_seconds_max: float) -> str:
        if (text_codec := self._text_codec()) is None:
            return ""
        given = text_codec.encode(first_words(self._config))
        generator = torch.Generator().manual_seed(self._config.seed)
        is_late, is_dear = self._after(SAMPLE_SECONDS), passed(self._spent_clock, spent_seconds_max)
        following = self._full.sample(anchors, given, SAMPLE_TOKENS, generator, lambda: is_late() or is_dear())
        return text_codec.decode([*given, *following]) if len(following) >= SAMPLE_TOKENS_MIN else ""

    def _is_stale(self, anchors: Sequence[Tensor]) -> bool:
        given_way = sum(then.nbytes for then, now in zip(anchors, self._anchors(), strict=True) if then is not now)
        return given_way > max(STALE_BYTES_MIN, STALE_SHARE_MAX * sum(one.nbytes for one in anchors))

    def _after(self, seconds: float) -> Enough:
        """Return whether this many seconds have passed from now; true at once when hurried."""
        is_over = passed(self._clock, seconds)
        return lambda: self._hurried.is_set() or is_over()

    @property
    def _spent_clock(self) -> Callable[[], float]:
        """What tells, in the worker, how long a core or a GPU has worked; waiting for a core counts as nothing."""
        return time.thread_time if self._device == PROCESSOR else time.monotonic

    async def _run(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._work, work)

    def _work(self, work: Callable[[], Answer]) -> Answer:
        """Run the work and count the time that it took. If a GPU fails, go on on the CPU, for good.

        The memory of the GPU may have been taken by another program. On the CPU only this thread's own time counts:
        otherwise a busy machine would hardly ever evaluate.
        """
        spent_seconds = self._spent_clock
        started = spent_seconds()
        try:
            return work()
        except RuntimeError as error:
            if self._device == PROCESSOR:
                raise
            log.warning("evaluates_on_the_processor", device=self._device, reason=first_line(error))
            self._place(PROCESSOR)
            return work()
        finally:
            self._spent_seconds += spent_seconds() - started
            give_back_freed()
            if self._device != PROCESSOR:
                torch.cuda.empty_cache()

    def use(self, threads: int) -> None:
        """Evaluate on this many cores from now on, or on one if the model is small.

        Set in the worker thread, because MKL keeps it per thread.
        """
        self._worker.submit(torch.set_num_threads, threads if self._fills_cores else 1)

    @property
    def _fills_cores(self) -> bool:
        elements = sum(fragment.elements for fragment in self._full.fragments)
        operations = 2.0 * elements * self._config.data.evaluation_tokens
        return self._config.adapter is not None or operations > ONE_CORE_OPERATIONS  # a base may be of any size

    def close(self) -> None:
        """Give up the evaluation under way and end the thread."""
        self._closed.set()
        self._worker.shutdown(wait=True, cancel_futures=True)


def passed(clock: Callable[[], float], seconds: float) -> Enough:
    """Return whether so many seconds of this clock have passed from now."""
    ends = clock() + seconds
    return lambda: clock() >= ends


def nice_worker(name: str) -> ThreadPoolExecutor:
    """Return an executor with one low-priority thread."""
    return ThreadPoolExecutor(1, name, initializer=_be_nice)


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
