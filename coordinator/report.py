"""The report of `muster swarm`, `muster lab` and `muster chaos` (design §11): what others script against."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Ban(BaseModel):
    """A key that lost its place, and why."""

    model_config = ConfigDict(frozen=True)

    peer: str
    fault_class: str = Field(serialization_alias="class")
    reason: str


class SwarmReport(BaseModel):
    """One run, summed up. Losses in nats per token; `utilisation` is learners' CPU seconds over cores × wall."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    peers: int
    versions_certified: int
    rounds_void: int
    eval_loss_first: float
    eval_loss_last: float
    tokens: int
    wall_seconds: float
    inner_steps: int
    utilisation: float
    bytes_sent_per_peer: int
    bytes_received_per_peer: int
    agreement: bool
    state_digests: dict[str, dict[str, tuple[int, str]]]
    bans: tuple[Ban, ...] = ()
    events: dict[str, int]
    group_size_mean: float
    tokens_certified: int
    minor_certificates: int
    steps_per_version: float
    adoption_delay_steps: dict[str, float]
