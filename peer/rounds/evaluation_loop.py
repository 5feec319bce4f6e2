"""The host's evaluations: held-out loss of the certified anchors, on a low-priority thread of their own."""

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
from peer.data.token_files import TokenData
from peer.data.wording import Wording, first_words, run_wording
from peer.learner.evaluation import Enough, Estimate, Evaluator, never
from peer.machine.heap import give_back_freed
from peer.machine.text import first_line
from peer.rounds.public_status import thinned

Answer = TypeVar("Answer")

NICENESS = 10
SAMPLE_TOKENS = 240
SAMPLE_TOKENS_MIN = 16  # of less nobody can tell how the model writes
SAMPLE_EVERY_SECONDS = 60.0  # while the run goes on
LIVE_SAMPLE_SECONDS = 2.0
CYCLES = 2  # of all fragments between two evaluations
BUSY_SHARE = 0.1  # evaluations take at most this share of a core, or of a GPU
REST_SECONDS_MIN = 0.2
LOOK_SECONDS = 30.0  # after which an evaluation goes by the part of the text that it has seen
SAMPLE_SECONDS = 10.0  # after which a piece of text is long enough
LAST_SECONDS_MAX = 90.0  # on a machine that is too busy for two passes in that time, there is no last evaluation
STALE_BYTES_MIN, STALE_SHARE_MAX = 16 << 20, 0.125  # of a model, that an evaluation keeps of what has given way
QUICK_SHARE = 8  # evaluations during the run use one in so many of the held-out windows
PROCESSOR = "cpu"
EVALUATIONS_KEPT = 1024  # a snapshot holds them all; when there are more, every second one goes

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a run stands; `complete` if the newest version of every fragment is here."""

    versions: int
    tokens: int
    wall_seconds: float
    complete: bool


class EvaluationLoop:
    """Evaluates whenever enough versions have passed; keeps what it found, however long the run is."""

    def __init__(
        self,
        config: RunConfig,
        data: TokenData,
        anchors: Callable[[], list[Tensor]],
        clock: Callable[[], float] = time.monotonic,
        wording: Callable[[], Wording | None] | None = None,
        device: str = PROCESSOR,
    ) -> None:
        """`wording` says how the run's tokens are read; without it only bytes are."""
        self._config = config
        self._wording = wording or (lambda: run_wording(config, None))
        self._anchors = anchors
        self._clock = clock
        self._worker = nice_worker("evaluation")
        self._closed = threading.Event()
        self._hurried = threading.Event()  # what is under way ends with what it has seen
        self._heldout = data.heldout
        self._spent_seconds = 0.0  # of a core or of a GPU
        self._place(device)
        self.found: list[Evaluation] = []
        self.newest_text = ""  # that the model wrote
        self._looked_at = -1  # how many versions, at last

    def _place(self, device: str) -> None:
        """Evaluate there from now on."""
        config = self._config
        quick = config.data.model_copy(
            update={"evaluation_tokens": max(256, config.data.evaluation_tokens // QUICK_SHARE)}
        )
        self._device = device
        self._full = Evaluator(config, self._heldout, device, self._closed)
        self._quick = self._full.on_other(config.model_copy(update={"data": quick}))

    async def run(self, mark: Callable[[], Mark]) -> None:
        """A full evaluation first, then quick ones, now and then with a text; each rests in proportion to its cost."""
        await self.evaluate(mark(), full=True)
        loop = asyncio.get_running_loop()
        writes_at = loop.time() + SAMPLE_EVERY_SECONDS
        while True:
            started, spent, now = loop.time(), self._spent_seconds, mark()
            if now.complete and now.versions >= self.found[-1].versions + CYCLES * self._config.pace.fragments:
                await self.evaluate(now, full=False)
                if started >= writes_at:
                    await self.sample(LIVE_SAMPLE_SECONDS)
                    writes_at = started + SAMPLE_EVERY_SECONDS
            await asyncio.sleep(max(REST_SECONDS_MIN, (self._spent_seconds - spent) / BUSY_SHARE))

    async def evaluate(self, mark: Mark, full: bool) -> Evaluation:
        """Loss of the anchors as they are now, in nats per token; of a part of the text if all of it takes too long.

        That is if others take their place meanwhile: so there is never a second model in memory.
        """
        anchors = self._anchors()

        def look() -> Estimate:
            late, evaluator = self._after(LOOK_SECONDS), (self._full if full else self._quick)
            return evaluator.estimate(anchors, lambda: late() or self._is_stale(anchors))

        found = await self._run(look)
        evaluation = Evaluation(
            versions=mark.versions,
            tokens_certified=mark.tokens,
            wall_seconds=mark.wall_seconds,
            loss=found.loss,
            error=found.error,
        )
        self._keep(evaluation)
        return evaluation

    async def look_last(self, mark: Mark, seconds_max: float = LAST_SECONDS_MAX) -> None:
        """A last evaluation, on all held-out text, and a sample, once. What is under way gives way.

        A machine that is too busy for it in this time leaves what was found before.
        """
        if self._looked_at == mark.versions:
            return
        self._hurried.set()
        self._worker.submit(self._hurried.clear)
        try:
            async with asyncio.timeout(seconds_max):
                await self.evaluate(mark, full=True)
                await self.sample()
                self._looked_at = mark.versions
        except TimeoutError:
            log.warning("last_evaluation_given_up", seconds=seconds_max)

    def _keep(self, evaluation: Evaluation) -> None:
        """The first and the last always stay: reports compare them."""
        self.found.append(evaluation)
        if len(self.found) > EVALUATIONS_KEPT:
            self.found = list(thinned(self.found, EVALUATIONS_KEPT // 2))

    async def loss(self, anchors: Sequence[Tensor]) -> float:
        """Loss of other anchors, float32[elements] per fragment, on all held-out windows; in nats per token."""
        return (await self._run(lambda: self._full.estimate(anchors, never))).loss

    async def sample(self, seconds_max: float = SAMPLE_SECONDS) -> str:
        """The newest piece of text that the model wrote; empty where nobody can read its tokens.

        A machine that is too busy to write enough of it leaves the last one, or none.
        """
        anchors = self._anchors()
        self.newest_text = await self._run(lambda: self._written(anchors, seconds_max)) or self.newest_text
        return self.newest_text

    def _written(self, anchors: Sequence[Tensor], seconds_max: float) -> str:
        if (wording := self._wording()) is None:
            return ""
        given = wording.encode(first_words(self._config))
        generator, enough = torch.Generator().manual_seed(self._config.seed), self._after(seconds_max)
        following = self._full.sample(anchors, given, SAMPLE_TOKENS, generator, enough)
        return wording.decode([*given, *following]) if len(following) >= SAMPLE_TOKENS_MIN else ""

    def _is_stale(self, anchors: Sequence[Tensor]) -> bool:
        given_way = sum(then.nbytes for then, now in zip(anchors, self._anchors(), strict=True) if then is not now)
        return given_way > max(STALE_BYTES_MIN, STALE_SHARE_MAX * sum(one.nbytes for one in anchors))

    def _after(self, seconds: float) -> Enough:
        """From now on; at once where it is hurried."""
        ends = self._clock() + seconds
        return lambda: self._hurried.is_set() or self._clock() >= ends

    async def _run(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._work, work)

    def _work(self, work: Callable[[], Answer]) -> Answer:
        """On the processor, for good, once a GPU fails: its memory may have become another program's.

        While others have the core nothing is spent: else a busy machine would hardly ever evaluate.
        """
        spent_seconds = time.thread_time if self._device == PROCESSOR else time.monotonic
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
        """Evaluate on so many cores from now on. Torch is told in each thread: MKL forgets it in others."""
        self._worker.submit(torch.set_num_threads, threads)

    def close(self) -> None:
        """An evaluation under way is given up."""
        self._closed.set()
        self._worker.shutdown(wait=True, cancel_futures=True)


def nice_worker(name: str) -> ThreadPoolExecutor:
    """One thread that everything else goes before."""
    return ThreadPoolExecutor(1, name, initializer=_be_nice)


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
