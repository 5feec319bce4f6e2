"""The settings of a run that trains an adapter: small matrices beside those of a base model that stays the same."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from coordinator.run.model_spec import BY_HOST, LINE, TENSORS_MAX, LaterFlag
from dht.wire import Wire

ALL_LINEAR = "all-linear"
TARGETS_MAX = 256
GIVEN_BASE_BYTES_MAX = 2 << 30  # a billion numbers in 16 bits
# 4 bits; a byte for the scale of 64 numbers, and a float32 for that of 256 such scales (QLoRA 2305.14314)
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)

HeldPrecision = Literal["float32", "bfloat16", "nf4"]
BasePrecision = Literal["float32", "bfloat16", "nf4", "any"]


class BaseTensor(Wire):
    """One tensor of the base as its files have it: its name, and a hash of type, shape and bits."""

    name: str = Field(min_length=1, max_length=256, pattern=LINE)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class BaseFile(Wire):
    """The one file of a base that peers of the run hand out: its size, and the root of its Merkle tree.

    Each piece is verified against the root as it arrives, so it does not matter which peer sends it
    (`peer.sync.base_fetch`).
    """

    size_bytes: int = Field(ge=1, le=GIVEN_BASE_BYTES_MAX)
    root: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def digest(self) -> bytes:
        """The root, by which peers that hold the file name it."""
        return bytes.fromhex(self.root)


class AdapterSpec(Wire):
    """Train a low-rank adapter (LoRA 2106.09685) of the model that `model.source` names, which stays as it is.

    Every peer brings that base itself, or, if the organiser gives it, gets it from others. Without this table a run
    trains the model (docs/how-to/adapters.md).
    """

    OMITS_NONE: ClassVar[bool] = True

    method: Literal["lora"] = Field("lora", description="`lora`: W stays, W + alpha/rank · B · A is used")
    rank: int = Field(16, ge=1, le=1024, description="rows of A, and columns of B")
    alpha: float = Field(32.0, gt=0, le=65536, description="B · A counts alpha / rank times")
    targets: tuple[str, ...] = Field(
        (ALL_LINEAR,),
        min_length=1,
        max_length=TARGETS_MAX,
        description='layers that get an adapter, by the end of their names, as `["q_proj", "v_proj"]`; '
        f"`{ALL_LINEAR}`: all but the head",
    )
    dropout: float = Field(0.0, ge=0, le=0, description="none: a step is a function of its window alone")
    base_precision: BasePrecision = Field(
        "nf4",
        description="how a peer holds the base: `nf4` takes about half a byte for each of its numbers; `any`: as its "
        "owner says with `--base-precision`, else in `nf4`",
    )
    base: tuple[BaseTensor, ...] = Field(
        (), max_length=TENSORS_MAX, description="what the base has to be", json_schema_extra=BY_HOST
    )
    base_elements: int = Field(0, ge=0, description="numbers of the base", json_schema_extra=BY_HOST)
    linear_elements: int = Field(0, ge=0, description="those of them that nf4 shortens", json_schema_extra=BY_HOST)
    give_base: LaterFlag = Field(
        None,
        description="a peer without `--base` gets the base from this run's peers: one `model.safetensors` of at most "
        f"{GIVEN_BASE_BYTES_MAX >> 30} GB, which you may pass on",
    )
    base_file: BaseFile | None = Field(None, description="the file that is given", json_schema_extra=BY_HOST)

    @field_validator("targets", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        """Take one name for a list of one, and a TOML array for a tuple."""
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value

    @field_validator("targets")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not 1 <= len(name) <= 256 or not name.isprintable() for name in value):
            raise ValueError("adapter.targets must be names of layers")
        if ALL_LINEAR in value and len(value) > 1:
            raise ValueError(f'adapter.targets is "{ALL_LINEAR}" alone, or names of layers')
        return value

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if len({tensor.name for tensor in self.base}) != len(self.base):
            raise ValueError("adapter.base must have distinct names")
        return self

    @property
    def held(self) -> HeldPrecision:
        """The precision in which a machine holds the base, unless its owner chooses another."""
        return "nf4" if self.base_precision == "any" else self.base_precision

    @property
    def base_bytes(self) -> int:
        """Bytes that the base takes on its device."""
        if self.held == "float32":
            return 4 * self.base_elements
        shortened = self.linear_elements if self.held == "nf4" else 0
        return int(NF4_BYTES * shortened) + 2 * (self.base_elements - shortened)

    @property
    def scale(self) -> float:
        """The factor of B · A."""
        return self.alpha / self.rank
