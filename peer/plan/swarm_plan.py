"""A plan file for a swarm that does not exist yet: TOML, checked, with readable errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coordinator.run.manifest import FRAGMENTS_MAX, PEERS_PER_GROUP_MAX, RunConfig, run_tables
from coordinator.run.toml_file import parse_toml, read_text, with_full_names
from coordinator.run.validation_errors import first_error
from dht.errors import UsageError
from peer.plan.cost import Kept, Workload

PEERS_MAX = 20_000
HOURS_MAX = 24.0 * 365

Preset = Literal["homes", "fibre", "cable", "university", "datacentres"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class CrowdPart(_Strict):
    """Volunteers: a preset describes their lines and sessions, the other keys replace parts of it."""

    peers: int = Field(ge=1, le=PEERS_MAX)
    step_seconds: float = Field(gt=0, le=1e6, description="of the median peer")
    preset: Preset = "homes"
    speed_sigma: float = Field(0.5, ge=0, le=3, description="spread of speeds: lognormal")
    up_mbit: float | None = Field(None, gt=0, le=1e6, description="every uplink instead of the preset's")
    down_mbit: float | None = Field(None, gt=0, le=1e6)
    latency_seconds: float | None = Field(None, ge=0, le=10, description="between two peers, one way")
    usable_share: float = Field(0.8, gt=0, le=1, description="of each line; the rest is for those who live there")
    session_hours: float | None = Field(None, ge=0, le=HOURS_MAX, description="mean; 0: nobody ever leaves")
    on_share: float | None = Field(None, gt=0, le=1, description="of a peer's time that it is there")
    kill_share: float | None = Field(None, ge=0, le=1, description="of sessions that end without a goodbye")
    undialable_share: float | None = Field(None, ge=0, lt=1)
    restart_seconds: float = Field(30.0, ge=0, le=86_400, description="from the start of a peer to its first step")


class LocalPart(_Strict):
    """Machines that are all alike, as in `muster chaos` and the shaped-link benchmark."""

    peers: int = Field(ge=1, le=PEERS_MAX)
    step_seconds: float = Field(gt=0, le=1e6)
    mbit_per_second: float = Field(1000.0, gt=0, le=1e7, description="of each line, each way")
    rtt_seconds: float = Field(0.001, ge=0, le=10)
    restart_seconds: float = Field(12.0, ge=0, le=86_400, description="from the start of a process to its first step")
    chaos: str | None = Field(None, description="a plan of `muster chaos`, relative to this file")


class PlanFile(_Strict):
    """The whole file."""

    run: str | None = Field(None, description="a run file, relative to this one; without it, the defaults of a run")
    seed: int | None = Field(None, ge=0)  # None: 0, and for the faults that of the chaos plan
    hours: float | None = Field(None, gt=0, le=HOURS_MAX, description="simulated time; else the chaos plan's, or a day")
    parameters: float | None = Field(None, ge=1, le=1e15, description="instead of what the run's model has")
    tokens_per_step: int | None = Field(None, ge=1, le=1 << 40)
    gpu_gigabytes: float | None = Field(None, gt=0, le=1e5, description="what the smallest peer has")
    group_max: int = Field(PEERS_PER_GROUP_MAX, ge=1, le=PEERS_PER_GROUP_MAX)
    hostile_share: float = Field(0.1, ge=0, lt=1, description="of all peers, for the risk of a captured group")
    pace: dict[str, Any] = Field(default_factory=dict, description="keys of a run's [pace] instead of the run file's")
    outer: dict[str, Any] = Field(default_factory=dict)
    swarm: CrowdPart | None = None
    local: LocalPart | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.swarm is None) == (self.local is None):
            raise ValueError("a plan has either [swarm] or [local]")
        return self

    @classmethod
    def load(cls, path: Path) -> PlanFile:
        """Read a plan; raises UsageError with one sentence that names the mistake."""
        try:
            return cls.model_validate(parse_toml(read_text(path, "file"), str(path)))
        except ValidationError as error:
            raise UsageError(f"{path}: {first_error(error, cls)}; see docs/how-to/plan.md") from None

    def workload(self, path: Path) -> Workload:
        """Return the workload; `path` is the path of this file. Raises UsageError."""
        source = path if self.run is None else path.parent / self.run
        tables = {} if self.run is None else run_tables(read_text(source, "file"), str(source))
        for name, part in with_full_names({"pace": self.pace, "outer": self.outer}).items():
            if isinstance(table := tables.setdefault(name, {}), dict):  # else the run file is at fault, as said below
                tables[name] = table | part
        try:
            config = RunConfig.model_validate(tables)
        except ValidationError as error:
            raise UsageError(f"{source}: {first_error(error, RunConfig)}; see docs/reference/config.md") from None
        tokens = config.tokens_per_step if self.tokens_per_step is None else self.tokens_per_step
        parameters, base_bytes, kept, tensors = _sizes(config)
        if self.parameters is not None:
            parameters, base_bytes, kept = self.parameters, 0.0, replace(kept, largest_share=0.0)
            tensors = FRAGMENTS_MAX  # nothing is known of them
        return Workload(parameters, tokens, config.pace, config.outer, self.group_max, base_bytes, kept, tensors)


def _sizes(config: RunConfig) -> tuple[float, float, Kept, int]:
    """Return the trained parameters, the bytes of the base, the bytes a peer keeps per parameter, and the tensors."""
    from peer.learner.memory_estimate import (
        disk_bytes_per_parameter,
        kept_bytes_per_parameter,
        rounding_bytes_per_parameter,
    )
    from peer.model.build import parameter_specs
    from peer.model.sketch import with_shapes

    known = with_shapes(config)
    base = 0.0 if known.adapter is None else float(known.adapter.base_bytes)
    tensors = parameter_specs(known.model)
    trained = float(sum(tensor.elements for tensor in tensors))
    whole = [one.elements for one in tensors if not (known.pace.cut_embeddings and one.embedding)]
    kept = Kept(
        kept_bytes_per_parameter(known),
        rounding_bytes_per_parameter(known),
        disk_bytes_per_parameter(known),
        max(whole, default=0) / trained,
    )
    return trained, base, kept, len(tensors)
