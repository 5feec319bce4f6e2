"""The immutable description of a run. Its hash is the run id; everything peers must agree on beforehand is here.

A `RunConfig` is what an organiser writes (one TOML file). `Manifest` adds what only exists once the run does:
founders, organiser, the digest of the data and of the initial state.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from dht.errors import UsageError
from dht.identity import PeerId
from dht.records import RECORD_KINDS
from dht.statement import Digest, PeerIdText, digest_of
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR, Wire

PEERS_PER_GROUP_MAX = 32
FRAGMENTS_MAX = 256
PRESENCE_SECONDS_MAX = RECORD_KINDS["presence"].lifetime_seconds_max

Codec = Literal["fp32", "fp16", "bf16", "int8", "int4", "e3m0", "int2"]
Merge = Literal[
    "robust_rda",
    "centered_clip",
    "median",
    "trimmed_mean",
    "geometric_median",
    "nnm_trimmed_mean",
    "krum",
    "multi_krum",
    "rda",
    "mean",
]
InnerOptimizer = Literal["adamw8bit", "lion8bit", "ademamix8bit", "adamw", "muon"]
Norms = Literal["tensor", "row"]
Adoption = Literal["carry", "overwrite", "blend"]


class ModelSpec(Wire):
    """A causal language model of the Llama family (`transformers.LlamaConfig`)."""

    hidden_size: int = Field(128, ge=8, le=16384, description="width of the residual stream")
    layers: int = Field(4, ge=1, le=256, description="number of transformer blocks")
    heads: int = Field(4, ge=1, le=256, description="attention heads")
    intermediate_size: int = Field(352, ge=8, le=65536, description="width of the feed-forward layer")
    vocabulary: int = Field(256, ge=2, le=1 << 20, description="number of tokens; 256 for bytes")


class DataSpec(Wire):
    """What the learners read."""

    source: Literal["stdlib"] = Field("stdlib", description="`stdlib`: this Python's own source text, byte by byte")
    context_tokens: int = Field(128, ge=8, le=1 << 20, description="length of one training sequence, in tokens")
    sequences_per_step: int = Field(8, ge=1, le=1 << 16, description="sequences in one inner step of one learner")
    evaluation_tokens: int = Field(32768, ge=256, le=1 << 26, description="held-out tokens behind each evaluation")


class InnerSpec(Wire):
    """The inner optimizer of every learner; its rate follows certified progress, not local steps (design §8)."""

    optimizer: InnerOptimizer = Field(
        "adamw8bit",
        description="`…8bit` are bitsandbytes'; `muon` is for matrices, with AdamW for embeddings and vectors",
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


class OuterSpec(Wire):
    """The outer step (design §6.4) and the merge (§7)."""

    learning_rate: float = Field(0.5, gt=0, le=10, description="η of the Nesterov outer step")
    momentum: float = Field(0.8, ge=0, lt=1, description="μ of the Nesterov outer step")
    merge: Merge = Field("robust_rda", description="how contributions become one outer gradient (docs/aggregators.md)")
    contribution_codec: Codec = Field("int8", description="encoding of a member's outer gradient")
    result_codec: Codec = Field("int8", description="encoding of the merged outer gradient")
    adoption: Adoption = Field(
        "carry",
        description="`carry` keeps the steps made while a round ran, `overwrite` drops them, `blend` keeps a share",
    )
    norms: Norms = Field("tensor", description="what `rda` and `robust_rda` give one length: a tensor, or each row")
    adoption_blend: float = Field(0.5, ge=0, le=1, description="share α of its own parameters that `blend` keeps")
    error_feedback: bool = Field(
        False, description="members add what encoding cut off one contribution to their next one"
    )


class PaceSpec(Wire):
    """Who waits for whom, and how long (design §6.2)."""

    fragments: int = Field(8, ge=1, le=FRAGMENTS_MAX, description="P: parts of the model that are synchronised in turn")
    steps_per_version: int = Field(
        24, ge=1, le=1 << 20, description="H: inner steps between two versions of a fragment"
    )
    overlap: int = Field(2, ge=1, le=16, description="τ: rounds in flight at once")
    quorum: int = Field(3, ge=1, le=PEERS_PER_GROUP_MAX, description="K: joined peers that start the grace window")
    grace_share: float = Field(0.5, ge=0, lt=1, description="γ: share of the slack given to late peers")
    min_group: int = Field(2, ge=1, le=PEERS_PER_GROUP_MAX, description="fewest members a round may have")
    min_share: float = Field(0.5, ge=0, lt=1, description="share of the active set a full certificate must exceed")
    max_stale: int = Field(4, ge=1, le=64, description="versions a contribution may lag before it is dropped")
    round_seconds: float = Field(8.0, gt=0, le=86400, description="deadline of one attempt at a round")
    presence_seconds: float = Field(
        3.0, gt=0, le=PRESENCE_SECONDS_MAX / 2, description="a peer says that it is there this often"
    )
    presence_lifetime_seconds: float = Field(
        9.0, gt=0, le=PRESENCE_SECONDS_MAX, description="after this silence a peer counts as gone"
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.presence_lifetime_seconds < 2 * self.presence_seconds:
            raise ValueError("pace.presence_lifetime_seconds must be at least twice pace.presence_seconds")
        return self


class RunConfig(Wire):
    """One run as its organiser describes it."""

    name: str = Field(
        "tiny",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
        description="what people call the run",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seeds initial parameters, data order and every other draw")
    versions: int = Field(
        400, ge=1, le=2**40, description="the run ends after this many certified versions, over all fragments"
    )
    model: ModelSpec = Field(default_factory=ModelSpec)
    data: DataSpec = Field(default_factory=DataSpec)
    inner: InnerSpec = Field(default_factory=InnerSpec)
    outer: OuterSpec = Field(default_factory=OuterSpec)
    pace: PaceSpec = Field(default_factory=PaceSpec)

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.model.hidden_size % self.model.heads:
            raise ValueError("model.hidden_size must be a multiple of model.heads")
        return self

    @classmethod
    def from_toml(cls, path: Path) -> RunConfig:
        """Read a run file; raises UsageError with one sentence that names the key at fault."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(f"there is no run file at {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read as text: {error}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> RunConfig:
        """Parse TOML text; `source` names it in errors."""
        try:
            return cls.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{source} is not valid TOML: {error}") from None
        except ValidationError as error:
            raise UsageError(f"{source}: {fault_of(error)}; see docs/config.md") from None

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one inner step of one learner."""
        return self.data.context_tokens * self.data.sequences_per_step


def fault_of(error: ValidationError) -> str:
    """The first thing that is wrong, in words."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # one of our own, which names its keys
        return str(first["ctx"]["error"])
    problem = "is not a known key" if first["type"] == "extra_forbidden" else first["msg"].lower()
    return f"{'.'.join(map(str, first['loc']))}: {problem}"


class Manifest(Wire):
    """A run that exists. Hash it with `run_id`."""

    config: RunConfig
    organiser: PeerIdText
    founders: tuple[PeerIdText, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    data_digest: Digest
    genesis: tuple[Digest, ...] = Field(min_length=1, max_length=FRAGMENTS_MAX)
    created_unix_seconds: int = Field(ge=0)
    protocol_major: int = PROTOCOL_MAJOR
    protocol_minor_min: int = Field(PROTOCOL_MINOR, ge=0)

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if len(self.genesis) != self.config.pace.fragments:
            raise ValueError("genesis must hold one digest per fragment")
        if len(set(self.founders)) != len(self.founders):
            raise ValueError("founders must be distinct")
        return self

    @property
    def run_id(self) -> bytes:
        """SHA-256 of the canonical encoding."""
        return digest_of(b"muster-manifest", self.to_wire())

    @property
    def founder_ids(self) -> frozenset[PeerId]:
        return frozenset(PeerId(founder) for founder in self.founders)
