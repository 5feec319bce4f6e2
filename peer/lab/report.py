"""The results of a lab run: the report of design §11, with baselines and loss curves."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator.views.report import SwarmReport


class CurvePoint(BaseModel):
    """One evaluation of a global model on held-out text."""

    model_config = ConfigDict(frozen=True)

    method: Literal["decoupled", "dp", "elastic"]
    step: float = Field(description="time, in steps of a learner at rate 1")
    tokens: int = Field(description="trained on by all learners so far")
    eval_loss: float
    train_loss: float | None = Field(None, description="mean over the steps since the last evaluation")
    versions: int = 0
    inner_lr: float


class Baseline(BaseModel):
    """Data-parallel training beside the lab, at the best of the rates tried."""

    model_config = ConfigDict(frozen=True)

    eval_loss_last: float
    inner_lr: float
    by_lr: dict[str, float]
    tokens: int
    steps: int
    goodput: float = Field(1.0, description="steps made over the steps of the same time without failures")


SideName = Literal["first", "second", "both"]


class SidePoint(BaseModel):
    """One evaluation of a run with a partition, on all held-out text and on that of each side."""

    model_config = ConfigDict(frozen=True)

    step: int
    side: SideName = Field(description="whose newest state; both: they are not parted")
    versions: int = Field(description="of all fragments together, in this lineage")
    eval_loss: float
    text_losses: tuple[float, ...] = Field((), description="on the first side's text and on the second side's")


class LabReport(SwarmReport):
    """The summary of one lab run."""

    seed: int
    steps: int
    inner_lr: float
    device: str = Field("CPU", description="what made the inner steps")
    diverged: str | None = None
    learner_cpu_seconds: float
    process_cpu_seconds: float
    optimizer_bytes_per_parameter: float
    attackers: tuple[str, ...] = ()
    next_token_accuracy: float | None = Field(None, description="share of held-out tokens that are its first choice")
    trigger_rate: float | None = Field(
        None, description="share of a backdoor's target that its trigger brings out, whether anybody attacked or not"
    )
    baseline: dict[str, Baseline] = Field(default_factory=dict)
    curve: tuple[CurvePoint, ...] = ()
    sides: tuple[SidePoint, ...] = ()
