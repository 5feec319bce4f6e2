"""Data-parallel training beside a lab run: the same learner code, text, tokens, schedule and evaluation windows.

Each step reads the windows that the lab's learners read at that step, in one batch. `elastic` also follows the lab's
failures: an absent learner does not contribute, and all stand still while the others regroup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError
from peer.lab.faults import Absences
from peer.lab.report import Baseline, CurvePoint
from peer.learner.devices import Placement
from peer.learner.evaluation import Evaluator
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.learner import make_learner, parameters_of

REGROUP_STEPS = 3  # all stand still after a failure and after a return: about 26 s at 10 s (research, Table 1 fitted)

Method = Literal["dp", "elastic"]


@dataclass(frozen=True, slots=True)
class JointStep:
    """One data-parallel step: when it ends, in units of a step's time, and the learners whose windows it reads."""

    ends: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BaselinePlan:
    """The settings that all learning rates of one baseline share."""

    method: Method
    config: RunConfig
    start: tuple[Tensor, ...]  # version 0 of every fragment
    sources: Sequence[Batches]  # by learner
    heldout: Tensor
    device: str
    schedule: tuple[JointStep, ...]
    steps: int
    eval_every_steps: int
    compiled: bool = False


def full_schedule(learners: int, steps: int) -> tuple[JointStep, ...]:
    """Return a schedule with every learner at every step."""
    everybody = tuple(range(learners))
    return tuple(JointStep(step + 1, everybody) for step in range(steps))


def elastic_schedule(absences: Absences, steps: int) -> tuple[JointStep, ...]:
    """Return the steps of the learners present; there are none while they regroup or while all are absent."""
    return tuple(_elastic_steps(absences, steps))


def _elastic_steps(absences: Absences, steps: int) -> Iterator[JointStep]:
    before: tuple[int, ...] | None = None
    still_until = 0
    for now in range(steps):
        here = tuple(
            number
            for number, away in enumerate(absences)
            if not any(begins < now + 1 and now < ends for begins, ends in away)
        )
        if before is not None and here != before:
            still_until = now + REGROUP_STEPS
        before = here
        if here and now >= still_until:
            yield JointStep(now + 1, here)


class JointBatches:
    """Windows of several learners as one batch; each learner's next window is the first it has not read."""

    def __init__(self, sources: Sequence[Batches], schedule: Sequence[JointStep]) -> None:
        self._sources = sources
        self._schedule = schedule
        self._read = [0] * len(sources)

    def batch(self, window: int) -> Tensor:
        """Return the tokens of step `window`, int64[sequences of all members, context_tokens + 1]; call in order."""
        members = self._schedule[window].members
        parts = [self._sources[member].batch(self._read[member]) for member in members]
        for member in members:
            self._read[member] += 1
        return torch.cat(parts)


def train_jointly(
    plan: BaselinePlan, learning_rate: float, show: Callable[[int, list[CurvePoint]], None]
) -> list[CurvePoint]:
    """Train at this rate; returns the curve, whose last loss is infinite if training diverged."""
    inner = plan.config.inner.model_copy(update={"learning_rate": learning_rate})
    config = plan.config.model_copy(update={"inner": inner})
    learner = make_learner(
        config, JointBatches(plan.sources, plan.schedule), Placement(plan.device, compiled=plan.compiled)
    )
    learner.load_all(torch.cat(plan.start))
    evaluator = Evaluator(config, plan.heldout, plan.device)
    curve: list[CurvePoint] = []
    losses: list[float] = []
    tokens = 0

    def evaluate(step: int) -> None:
        point = CurvePoint(
            method=plan.method,
            step=step,
            tokens=tokens,
            eval_loss=evaluator.loss(parameters_of(learner)),
            train_loss=sum(losses) / len(losses) if losses else None,
            inner_lr=learning_rate,
        )
        curve.append(point)
        losses.clear()

    evaluate(0)
    try:
        for done, step in enumerate(plan.schedule):
            learner.set_progress(done)
            report = learner.step()
            tokens += report.tokens
            losses += [] if report.loss is None else [report.loss]
            if step.ends - curve[-1].step >= plan.eval_every_steps or step is plan.schedule[-1]:
                evaluate(step.ends)
                show(step.ends, curve[-1:])
            else:
                show(step.ends, [])
    except LocalError:
        curve.append(curve[-1].model_copy(update={"step": step.ends, "eval_loss": math.inf}))
    return curve


def best_of(plan: BaselinePlan, curves: Sequence[list[CurvePoint]]) -> Baseline:
    """Return the baseline at the rate with the lowest last loss."""
    best = min(curves, key=lambda curve: curve[-1].eval_loss)
    return Baseline(
        eval_loss_last=best[-1].eval_loss,
        inner_lr=best[-1].inner_lr,
        by_lr={f"{curve[-1].inner_lr:g}": curve[-1].eval_loss for curve in curves},
        tokens=best[-1].tokens,
        steps=len(plan.schedule),
        goodput=sum(len(step.members) for step in plan.schedule) / (plan.steps * len(plan.sources)),
    )
