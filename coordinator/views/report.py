"""The report of `muster swarm`, `muster lab` and `muster chaos` (design §11), which users' scripts read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ReportedBan(BaseModel):
    """A banned key, the reason, and the number of peers that banned it."""

    model_config = ConfigDict(frozen=True)

    peer: str
    fault_class: str = Field(
        "A", serialization_alias="class", description="A: proven by evidence that anybody can check"
    )
    reason: str
    by: int = 1


class SwarmReport(BaseModel):
    """One run, summed up. Losses in nats per token; `utilisation` is learners' CPU seconds over cores × wall.

    `versions_per_minute` covers the time from the first to the last version that honest processes were seen with.
    """

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
    bans: tuple[ReportedBan, ...] = ()
    hostile: tuple[str, ...] = ()  # peers told to attack; all figures but tokens, steps and bytes leave them out
    events: dict[str, int]
    group_size_mean: float
    tokens_certified: int
    minor_certificates: int
    steps_per_version: float
    adoption_delay_steps: dict[str, float]
    versions_per_minute: float | None = None  # None in virtual time, and for fewer than two versions


class FaultRecord(BaseModel):
    """One line of a chaos run's timeline: seconds since measuring began. `detail` says why if it did not fire."""

    model_config = ConfigDict(frozen=True)

    seconds: float
    fault: str
    peer: str = ""
    detail: str = ""
    fired: bool = True


class ChaosReport(SwarmReport):
    """A run with injected faults; docs/how-to/chaos.md defines the figures.

    `measured_…` and `versions_per_minute` cover the time between warm-up and drain.
    `goodput` is None without a run to compare with, `goodput_ideal` if learners were held to no pace.
    """

    uptime: float
    goodput: float | None = None
    goodput_ideal: float | None
    longest_gap_seconds: float
    recovery_seconds: dict[str, float]
    not_recovered: int
    faults: dict[str, int]
    timeline: tuple[FaultRecord, ...]
    peers_planned: int
    step_seconds: float
    measured_seconds: float
    measured_peer_seconds: float
    measured_tokens_certified: int
