"""The part of a run's manifest about its model (`coordinator.run.manifest`)."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, field_validator, model_validator

from dht.wire import Wire

TENSORS_MAX = 4096
SETTINGS_CHARACTERS_MAX = 1 << 16
LINE = r"^[^\p{C}\p{Zl}\p{Zp}]*$"  # one line, nothing in which controls a terminal, for texts that people are shown
OWN = "own"  # marks a model or data that every peer brings itself
WRITTEN_BY = "written_by"
BY_HOST: dict[str, JsonValue] = {WRITTEN_BY: "host"}  # marks fields that no run file holds
RETIRED: dict[str, JsonValue] = {WRITTEN_BY: "nobody"}  # marks fields with one value, which old manifests have, too

Initial = Literal["width", "depth"]
Installed: TypeAlias = Annotated[
    str | None,
    Field(
        max_length=128,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*)?$",
        json_schema_extra={"type": "string", "default": ""},
    ),
    AfterValidator(lambda text: text or None),
]
"""An installed package, `NAME==VERSION`. None is the only form of no package, which older versions know."""
LaterFlag: TypeAlias = Annotated[
    Literal[True] | None,
    BeforeValidator(lambda flag: None if flag is False else flag),
    Field(json_schema_extra={"type": "boolean", "default": False}),
]
"""A flag that manifests of older versions lack. None is the only form of False, which older versions know."""


class TensorEntry(Wire):
    """One trained tensor: its name in the model, its shape, and its values at version 0 if they are seeded.

    `uniform` values are within ± `bound`, or within ± 1/√hidden_size if there is no bound.
    """

    OMITS_NONE: ClassVar[bool] = True

    name: str = Field(min_length=1, max_length=256, pattern=LINE)
    shape: tuple[int, ...] = Field(max_length=8)
    embedding: bool = False
    start: Literal["uniform", "ones", "zeros"] = "uniform"
    bound: float | None = Field(None, gt=0, le=1)


class ModelSpec(Wire):
    """A causal model of `transformers` (docs/how-to/models.md), or one that peers bring (docs/reference/session.md)."""

    OMITS_NONE: ClassVar[bool] = True

    hidden_size: int = Field(128, ge=8, le=16384, description="width of the residual stream")
    layers: int = Field(4, ge=1, le=256, description="number of transformer blocks")
    heads: int = Field(4, ge=1, le=256, description="attention heads")
    intermediate_size: int = Field(
        352, ge=8, le=65536, description="width of the feed-forward layer, where it can be set"
    )
    vocabulary: int = Field(256, ge=2, le=1 << 20, description="number of tokens; 256 for bytes")
    family: str = Field(
        "llama",
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="`model_type` in `transformers`, as in `gpt2`; `own`: peers bring the model (`peer.Session`)",
    )
    settings: str = Field(
        "",
        max_length=SETTINGS_CHARACTERS_MAX,
        description="a table of further fields of the model's `transformers` config, which override the keys above",
        json_schema_extra={"type": "table"},
    )
    source: str = Field(
        "",
        max_length=1024,
        pattern=LINE,
        description="take config and weights from this folder of the host's, or from `hub:NAME` (extra `[hf]`)",
    )
    weights: Literal["seeded", "given"] = Field(
        "seeded",
        description="version 0: `seeded` values, drawn alike by every machine, or those `given` by the host, "
        "which sends them to newcomers; with a `source` that holds weights always `given`",
    )
    tensors: tuple[TensorEntry, ...] = Field(
        (),
        max_length=TENSORS_MAX,
        description="names and shapes, for all but plain Llama models",
        json_schema_extra=BY_HOST,
    )
    package: Installed = Field(
        None, description="`NAME==VERSION` of the installed package that brings this `family` (docs/how-to/models.md)"
    )
    initial: Annotated[Initial | None, AfterValidator(lambda name: None if name == "width" else name)] = Field(
        None,
        description="within what bounds seeded matrices start: ± 1/√hidden_size (`width`), or ± 1/√fan-in (`depth`), "
        "and 1/√(2 · layers) of that where a layer writes its result, which suits any depth",
        json_schema_extra={"type": "string", "enum": list(get_args(Initial)), "default": "width"},
    )

    @field_validator("settings", mode="before")
    @classmethod
    def _canonical(cls, value: Any) -> Any:
        """Turn a table into the one JSON text that stands for it on the wire, where there are no maps."""
        return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _relations(self) -> Self:
        pairs = 2 * self.heads  # rotary positions turn pairs of a head's values
        if self.is_plain_llama and self.hidden_size % pairs:
            raise ValueError("model.hidden_size must be a multiple of twice model.heads")
        if any(size < 1 for tensor in self.tensors for size in tensor.shape):
            raise ValueError("model.tensors must hold something")
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            raise ValueError("model.tensors must have distinct names")
        if not isinstance(self.settings_table, dict):
            raise ValueError("model.settings must be a table")
        return self

    @property
    def settings_table(self) -> dict[str, Any]:
        """The table that `settings` stands for; raises ValueError."""
        try:
            return json.loads(self.settings or "{}")  # type: ignore[no-any-return]
        except RecursionError:
            raise ValueError("model.settings must be a table") from None

    @property
    def is_plain_llama(self) -> bool:
        """Whether names, shapes and values at version 0 follow from the first five keys and `initial` alone."""
        said = (self.family, self.settings, self.source, self.weights, self.tensors, self.package)
        return said == ("llama", "", "", "seeded", (), None)

    @property
    def is_own(self) -> bool:
        """Whether every peer brings the model itself, and Muster knows only its tensors."""
        return self.family == OWN
