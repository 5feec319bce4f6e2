"""Held-out loss: how good the model is, according to a peer that evaluates certified anchors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Evaluation(BaseModel):
    """Held-out loss of certified anchors."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    versions: int
    tokens_certified: int
    wall_seconds: float
    loss: float = Field(description="nats per token")
    error: float | None = Field(
        None, allow_inf_nan=False, description="its standard error; None if all held-out text was looked at"
    )
