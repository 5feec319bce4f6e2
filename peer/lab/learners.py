"""A real learner whose steps are made once a result is needed (design §3: the learner of `lab` is in-process).

Virtual time determines how many steps a learner has made, and before which step it adopted a version. The steps
themselves run later, on worker threads, all learners in parallel. The result therefore cannot depend on the number of
threads, as long as each computes with one.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dht.errors import LocalError
from peer.learner.learner import Learner
from peer.learner.work_counters import Counters
from peer.model.flat_parameters import parameters_digest
from peer.rounds.adoption import Adoption

Operation = Callable[[Learner], None]
"""An operation on a learner between two steps."""


class DivergedError(LocalError):
    """Training came to values that are not finite, or too large to contribute."""


@dataclass(frozen=True, slots=True)
class SavedLearner:
    """A learner's checkpoint, with adoptions that were decided but had not taken effect."""

    state: dict[str, Tensor]
    pending: tuple[tuple[int, Operation], ...]


@dataclass(slots=True)
class Tally:
    """Totals of all learners' work, over all lives."""

    steps: int = 0
    tokens: int = 0
    cpu_seconds: float = 0.0
    recent_losses: list[float] = field(default_factory=list)  # since the last evaluation

    def take_mean_loss(self) -> float | None:
        """Return the mean training loss since the last call; None without steps."""
        losses, self.recent_losses = self.recent_losses, []
        return sum(losses) / len(losses) if losses else None


class LazyLearner:
    """One learner in one life. Not thread-safe: only its steps run on other threads."""

    def __init__(self, learner: Learner, pool: Executor, tally: Tally) -> None:
        self._learner = learner
        self._pool = pool
        self._tally = tally
        self._todo: list[tuple[int, int, Operation]] = []  # a heap by step, then by order of arrival
        self._arrived = 0
        self._promised = learner.step_count
        self._working: Future[tuple[list[tuple[float | None, int]], float]] | None = None

    @property
    def steps(self) -> int:
        """Number of steps that are made or in progress."""
        return self._promised

    def digest(self) -> bytes:
        """Return a digest of the parameters after all steps and operations so far, bit for bit."""
        self.advance(self._promised)
        self.settle()
        return parameters_digest(self._learner.export_state())

    def after(self, step: int, operation: Operation) -> None:
        """Apply an operation after exactly `step` steps; raises ValueError if more have been promised already."""
        if step < self._promised:
            raise ValueError(f"step {self._promised} is made, it is too late to do something after step {step}")
        self._arrived += 1
        heapq.heappush(self._todo, (step, self._arrived, operation))

    def adopt(self, step: int, adoption: Adoption) -> None:
        """Adopt a new anchor after `step` steps."""
        self.after(step, lambda learner: learner.adopt(adoption.fragment, adoption.new, *adoption.terms()))

    def advance(self, step: int) -> None:
        """Begin to make all steps up to this one."""
        due: list[tuple[int, Operation]] = []
        while self._todo and self._todo[0][0] <= step:
            at, _, operation = heapq.heappop(self._todo)
            due.append((at, operation))
        if due or step > self._promised:
            self.settle()
            self._promised = max(step, self._promised)
            self._working = self._pool.submit(self._work, due, step)

    def settle(self) -> None:
        """Wait for the work in progress; raises DivergedError."""
        working, self._working = self._working, None
        if working is None:
            return
        try:
            made, cpu_seconds = working.result()
        except LocalError as error:
            raise DivergedError(str(error)) from None
        self._tally.steps += len(made)
        self._tally.tokens += sum(tokens for _, tokens in made)
        self._tally.cpu_seconds += cpu_seconds
        self._tally.recent_losses += [loss for loss, _ in made if loss is not None]

    def snapshot(self, fragment: int, step: int) -> tuple[Tensor, Counters]:
        """Return the fragment after `step` steps, float32[elements], and the work in it since its anchor."""
        self.advance(step)
        self.settle()
        out = torch.empty(self._learner.fragments[fragment].elements)
        return out, self._learner.snapshot(fragment, out)

    def save(self, step: int) -> SavedLearner:
        """Return everything that `restore` needs to continue from `step` with the same bits."""
        self.advance(step)
        self.settle()
        return SavedLearner(self._learner.export_state(), tuple((at, what) for at, _, what in sorted(self._todo)))

    def restore(self, saved: SavedLearner) -> None:
        """Continue from a checkpoint; for a learner that has made no step."""
        self._learner.import_state(saved.state)
        self._promised = self._learner.step_count
        for at, operation in saved.pending:
            self.after(at, operation)

    def _work(self, due: list[tuple[int, Operation]], step: int) -> tuple[list[tuple[float | None, int]], float]:
        """Make the steps; returns loss and tokens of each, and the CPU seconds they took."""
        started, made = time.thread_time(), list[tuple[float | None, int]]()
        for at, operation in [*due, (step, None)]:
            while self._learner.step_count < at:
                report = self._learner.step()
                made.append((report.loss, report.tokens))
            if operation is not None:
                operation(self._learner)
        return made, time.thread_time() - started
