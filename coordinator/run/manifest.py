"""The immutable description of a run. Its hash is the run id; everything peers must agree on beforehand is here.

A `RunConfig` is the file that an organiser writes (one TOML file). `Manifest` adds the facts of a run that exists:
founders, organiser, the digests of the data and of the initial state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from coordinator.run.about import AboutSpec
from coordinator.run.adapter_spec import AdapterSpec
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.model_spec import BY_HOST, OWN, RETIRED, Installed, LaterFlag, ModelSpec
from coordinator.run.toml_file import parse_toml, read_run_file, with_full_names
from coordinator.run.validation_errors import first_error, nearest
from dht.errors import UsageError
from dht.identity import PeerId
from dht.records import RECORD_KINDS
from dht.statement import Digest, PeerIdText, digest_of
from dht.wire import MESSAGE_BYTES_MAX, PROTOCOL_MAJOR, Wire

PEERS_PER_GROUP_MAX = 32
FRAGMENTS_MAX = 256
VERSIONS_MAX = 2**40
MANIFEST_BYTES_MAX = MESSAGE_BYTES_MAX // 2  # a peer sends it within a message
LAB = "lab"  # a table of run files with options of `muster lab`; it is no part of a run
PROBATION_ROUNDS_MAX = 14  # the certificates that determine them fit into one message (`Rules.memory`)
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
Norms = Literal["tensor", "row"]
RunAdoption = Literal["carry", "eager"]
Adoption = Literal["carry", "eager", "overwrite", "blend"]
"""The last two are for `muster lab` only, which reproduces published algorithms that use them."""
LaterShare: TypeAlias = Annotated[
    float | None,
    Field(ge=0, le=1, json_schema_extra={"type": "number", "default": 0.0, "minimum": 0, "maximum": 1}),
    AfterValidator(lambda share: share or None),
]
"""A share that manifests of older versions lack. None is the only form of 0, which older versions know."""


class OuterSpec(Wire):
    """The outer step and the merge."""

    OMITS_NONE: ClassVar[bool] = True

    learning_rate: float = Field(1.0, gt=0, le=10, description="η of the Nesterov outer step")
    momentum: float = Field(0.0, ge=0, lt=1, description="μ of the Nesterov outer step")
    merge: str = Field(
        "robust_rda",
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="how contributions become one outer gradient; or the name of a rule that `merge_package` brings "
        "(docs/how-to/aggregators.md)",
        json_schema_extra={"enum": list(get_args(Merge))},
    )
    contribution_codec: Codec = Field("int8", description="encoding of a member's outer gradient")
    result_codec: Codec = Field("int8", description="encoding of the merged outer gradient")
    adoption: Adoption = Field(
        "carry",
        description="`carry` keeps the steps made while a round ran; `eager` adds the learner's own part of the merge "
        "at once, makes these steps from there, and keeps a share of them (docs/adr/0040)",
        json_schema_extra={"enum": list(get_args(RunAdoption))},
    )
    norms: Norms = Field("tensor", description="what `rda` and `robust_rda` give one length: a tensor, or each row")
    adoption_blend: float = Field(0.5, ge=0, le=1, description="share α that `eager` keeps")
    error_feedback: bool = Field(
        False, description="members add what encoding cut off one contribution to their next one"
    )
    merge_package: Installed = Field(
        None,
        description="`NAME==VERSION` of the installed package that brings this `merge` (docs/how-to/aggregators.md)",
    )
    merge_sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="names what that rule computes", json_schema_extra=BY_HOST
    )
    moment_correction: LaterShare = Field(
        None,
        description="with `eager`, for `adamw8bit` and `adamw`: a learner's first moment takes over this share of what "
        "others brought to a merge (docs/adr/0041)",
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        is_built_in = self.merge in get_args(Merge)
        if not is_built_in and self.merge_package is None:
            raise ValueError(
                f"outer.merge: {self.merge!r} is none of {', '.join(map(repr, get_args(Merge)))}"
                f"{nearest(self.merge, get_args(Merge))}; name the "
                "outer.merge_package that brings it"
            )
        if is_built_in and (self.merge_package, self.merge_sha256) != (None, None):
            raise ValueError(f"outer.merge_package: {self.merge!r} is built in, so no package brings it")
        return self

    @property
    def keeps_later_steps(self) -> bool:
        """Whether the steps made since a snapshot are kept on top of the new anchor."""
        return self.adoption in ("carry", "eager")

    def kept_share(self, counted_steps: int) -> float:
        """Return the share of its distance from the reference that a learner keeps; all of it if nothing was merged."""
        return self.adoption_blend if self.adoption == "eager" and counted_steps > 0 else 1.0


class PaceSpec(Wire):
    """The pace of rounds: when they begin, and how long peers wait for each other."""

    OMITS_NONE: ClassVar[bool] = True

    fragments: int = Field(8, ge=1, le=FRAGMENTS_MAX, description="P: parts of the model that are synchronised in turn")
    steps_per_version: int = Field(
        24, ge=1, le=1 << 20, description="H: inner steps between two versions of a fragment"
    )
    overlap: int = Field(2, ge=1, le=16, description="τ: rounds in flight at once")
    quorum: int = Field(
        3, ge=1, le=PEERS_PER_GROUP_MAX, description="K: once this many peers have joined, the grace window begins"
    )
    grace_share: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="γ: the grace window for late peers, as a share of the time until the merge is needed",
    )
    min_group: int = Field(2, ge=1, le=PEERS_PER_GROUP_MAX, description="fewest members a round may have")
    min_share: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="a full certificate has votes of more than this share of the active set, the voters of the "
        "fragment's last four versions",
    )
    max_stale: int = Field(4, ge=1, le=64, description="versions a contribution may lag before it is dropped")
    round_seconds: float = Field(
        8.0,
        gt=0,
        le=86400,
        description="deadline of one attempt at a round; a fifth of it is the longest inner step that is in time",
    )
    presence_seconds: float = Field(
        3.0, gt=0, le=PRESENCE_SECONDS_MAX / 2, description="a peer says that it is there this often"
    )
    presence_lifetime_seconds: float = Field(
        9.0, gt=0, le=PRESENCE_SECONDS_MAX, description="after this silence a peer counts as gone"
    )
    cells: bool = Field(False, description="nothing reads it; in every run's id", json_schema_extra=RETIRED)
    cut_embeddings: LaterFlag = Field(
        None,
        description="an embedding that is larger than a fragment's share is cut between rows, so that fragments are of "
        "even size; for vocabularies that are a large part of the model",
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.presence_lifetime_seconds < 2 * self.presence_seconds:
            raise ValueError("pace.presence_lifetime_seconds must be at least twice pace.presence_seconds")
        return self


class TrustSpec(Wire):
    """Limits on new keys, for runs that strangers may join (docs/how-to/strangers.md)."""

    newcomers_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="largest share of a group that is new: neither founders nor active before; one member may always "
        "be; 1 is no bound",
    )
    network_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="largest share of a group from one public network (IPv4 /24, IPv6 /48), founders not counted; one "
        "member may always be; 1 is no bound",
    )
    probation_rounds: int = Field(
        0,
        ge=0,
        le=PROBATION_ROUNDS_MAX,
        description="certified rounds of a fragment in which a new key takes part before its work has weight there "
        "and it votes; founders are exempt",
    )
    audit_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of its rounds after which a member fetches the inputs of one partition and recomputes it",
    )
    score_share: float = Field(0.0, description="always 0, and in every run's id", json_schema_extra=RETIRED)

    @field_validator("score_share")
    @classmethod
    def _unscored(cls, share: float) -> float:
        if share:
            raise ValueError(
                "trust.score_share: there are no scores any more (docs/adr/0066-no-scores.md); leave it out"
            )
        return share

    @property
    def protections(self) -> tuple[float, ...]:
        """The settings that an open run needs; 0 is off."""
        return self.probation_rounds, 1 - self.network_share, self.audit_share

    @property
    def bounds_newcomers(self) -> bool:
        """Whether newcomers are limited in every group; then a run can only begin with founders that train."""
        return self.newcomers_share < 1

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.probation_rounds and self.newcomers_share > 0.25:
            raise ValueError(
                "trust.probation_rounds needs trust.newcomers_share of 0.25 at most: keys on probation have no vote "
                "and no weight, so the others have to be most of a group"
            )
        return self


class RunConfig(Wire):
    """One run as its organiser describes it."""

    OMITS_NONE: ClassVar[bool] = True

    name: str = Field(
        "tiny",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
        description="what people call the run",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seeds initial parameters, data order and every other draw")
    versions: int = Field(
        400, ge=1, le=VERSIONS_MAX, description="the run ends after this many certified versions, over all fragments"
    )
    model: ModelSpec = Field(default_factory=ModelSpec)
    data: DataSpec = Field(default_factory=DataSpec)
    inner: InnerSpec = Field(default_factory=InnerSpec)
    outer: OuterSpec = Field(default_factory=OuterSpec)
    pace: PaceSpec = Field(default_factory=PaceSpec)
    trust: TrustSpec = Field(default_factory=TrustSpec)
    about: AboutSpec | None = None
    adapter: AdapterSpec | None = None
    admission: AdmissionSpec | None = None

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.adapter is not None and self.model.is_own:
            raise ValueError('[adapter] needs a model of transformers, not model.family = "own"')
        if self.admission is not None:
            self.admission.check(self.trust.protections, self.pace.min_group)
        if self.data.is_in_passes and self.data.source == OWN:
            raise ValueError('data.order = "passes" cannot be combined with data.source = "own"')
        if self.outer.moment_correction is not None and self.pace.cut_embeddings:
            raise ValueError("outer.moment_correction cannot be combined with pace.cut_embeddings")
        if self.outer.moment_correction is not None and (
            self.outer.adoption != "eager"
            or self.inner.optimizer not in ("adamw8bit", "adamw")
            or self.data.source == OWN
        ):
            raise ValueError(
                'outer.moment_correction needs outer.adoption = "eager", inner.optimizer = "adamw8bit" or "adamw", and '
                'data.source other than "own"'
            )
        return self

    @property
    def uses_cells(self) -> bool:
        """Whether peers without a seat in a group bring their work through its members (docs/adr/0011).

        Cells cannot limit newcomers, and passes are dealt to the peers that a certificate names.
        """
        return not (self.trust.bounds_newcomers or self.data.is_in_passes)

    @classmethod
    def from_toml(cls, path: Path) -> RunConfig:
        """Read a run file; raises UsageError with one sentence that names the key at fault."""
        return cls.parse(read_run_file(path), str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> RunConfig:
        """Parse TOML text; `source` names it in errors."""
        try:
            found = cls.model_validate(run_tables(text, source))
        except ValidationError as error:
            raise UsageError(f"{source}: {first_error(error, cls)}; see docs/reference/config.md") from None
        found.check_adoption(source)
        return found

    def check_adoption(self, source: str) -> None:
        """Raise UsageError for an adoption that only `muster lab` has."""
        if self.outer.adoption not in get_args(RunAdoption):
            raise UsageError(
                f"{source}: outer.adoption = {self.outer.adoption!r} is for `muster lab --adoption` only; "
                f"a run has {' or '.join(map(repr, get_args(RunAdoption)))}"
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one inner step of one learner."""
        return self.data.context_tokens * self.data.sequences_per_step


def run_tables(text: str, source: str) -> dict[str, Any]:
    """Parse a run file into the tables of a run, unchecked: without LAB, and with the full names of all keys."""
    return with_full_names({key: value for key, value in parse_toml(text, source).items() if key != LAB})


def run_id_of(manifest: bytes) -> bytes:
    """Return the run id of an encoded manifest, even of one that this version cannot read."""
    return digest_of(b"muster-manifest", manifest)


class Manifest(Wire):
    """The manifest of a run that exists."""

    config: RunConfig
    organiser: PeerIdText
    founders: tuple[PeerIdText, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    data_digest: Digest
    genesis: tuple[Digest, ...] = Field(min_length=1, max_length=FRAGMENTS_MAX)
    created_unix_seconds: int = Field(ge=0)
    protocol_major: int = PROTOCOL_MAJOR
    protocol_minor_min: int = Field(0, ge=0)  # above 0 only if an older minor version could not follow this manifest

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if len(self.genesis) != self.config.pace.fragments:
            raise ValueError("genesis must hold one digest per fragment")
        if len(set(self.founders)) != len(self.founders):
            raise ValueError("founders must be distinct")
        if self.config.outer.merge_package is not None and self.config.outer.merge_sha256 is None:
            raise ValueError("outer.merge_sha256 must say what the rule of outer.merge_package computes")
        return self

    @property
    def run_id(self) -> bytes:
        """SHA-256 of the canonical encoding."""
        return run_id_of(self.to_wire())

    @property
    def founder_ids(self) -> frozenset[PeerId]:
        return frozenset(PeerId(founder) for founder in self.founders)
