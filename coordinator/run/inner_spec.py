"""The inner optimizer of a run's learners, and its learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field

from dht.wire import Wire

InnerOptimizer = Literal["adamw8bit", "lion8bit", "ademamix8bit", "adamw", "muon", "muon8bit"]
Precision = Literal["float32", "bfloat16"]
Schedule = Literal["cosine", "linear", "wsd"]
MUON_MOMENTUM, DECAY_SHARE = 0.9, 0.2


def _not(default: object) -> Callable[[Any], Any]:
    """Return a validator that turns a default into None, its only form: older manifests lack the field."""
    return lambda value: None if value == default else value


class InnerSpec(Wire):
    """The inner optimizer of every learner; its rate follows certified progress, not local steps."""

    OMITS_NONE: ClassVar[bool] = True

    optimizer: InnerOptimizer = Field(
        "muon8bit",
        description="`…8bit` are bitsandbytes'; `muon` and `muon8bit` are for matrices, with AdamW for "
        "embeddings and vectors",
    )
    learning_rate: float = Field(3e-3, gt=0, le=10, description="peak rate")
    final_rate_share: float = Field(0.1, ge=0, le=1, description="rate at the last version, as a share of the peak")
    warmup_steps: int = Field(
        40, ge=0, le=1 << 30, description="steps of linear warm-up, counted in certified progress"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="first-moment decay")
    beta2: float = Field(0.99, ge=0, lt=1, description="second-moment decay")
    weight_decay: float = Field(0.1, ge=0, le=10, description="decoupled weight decay, on matrices only")
    clip_norm: float = Field(1.0, gt=0, le=1e6, description="gradients are clipped to this global norm")
    precision: Precision = Field(
        "float32",
        description="of a learner's parameters and gradients; `bfloat16` takes half the memory, with stochastic "
        "rounding of steps (docs/explanation/memory.md)",
    )
    momentum: Annotated[float | None, Field(ge=0, lt=1), AfterValidator(_not(MUON_MOMENTUM))] = Field(
        None,
        description="β of Muon's momentum, which is Nesterov's",
        json_schema_extra={"type": "number", "default": MUON_MOMENTUM, "minimum": 0, "exclusiveMaximum": 1},
    )
    schedule: Annotated[Schedule | None, AfterValidator(_not("cosine"))] = Field(
        None,
        description="how the rate falls after the warm-up: `cosine`, `linear`, or `wsd`, which stays at the peak and "
        "falls over the last `decay_share`",
        json_schema_extra={"type": "string", "enum": list(get_args(Schedule)), "default": "cosine"},
    )
    decay_share: Annotated[float | None, Field(gt=0, le=1), AfterValidator(_not(DECAY_SHARE))] = Field(
        None,
        description="with `wsd`: share of the run's steps, at its end, in which the rate falls",
        json_schema_extra={"type": "number", "default": DECAY_SHARE, "exclusiveMinimum": 0, "maximum": 1},
    )

    @property
    def keeps_8_bits(self) -> bool:
        """Whether its state takes eight bits for each element of a large tensor."""
        return self.optimizer.endswith("8bit")

    @property
    def muon_momentum(self) -> float:
        """β of Muon's momentum."""
        return MUON_MOMENTUM if self.momentum is None else self.momentum

    @property
    def falling_share(self) -> float:
        """The share of the run's steps, at its end, in which the rate of `wsd` falls."""
        return DECAY_SHARE if self.decay_share is None else self.decay_share
