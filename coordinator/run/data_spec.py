"""The part of a run's manifest about the text that is trained on (`coordinator.run.manifest`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

from pydantic import AfterValidator, Field, field_validator

from coordinator.run.model_spec import BY_HOST, LINE
from dht.wire import Wire

CHAT_TEMPLATE_CHARACTERS_MAX = 1 << 15
CHAT = "chat"
NO_TOKEN = -2  # documents do not begin or end with the token that their tokenizer has for it

DataSource = Literal["stdlib", "text", "jsonl", "parquet", "tokens", "chat", "hub", "own"]
Order = Literal["draws", "passes"]
Borders = Literal["open", "closed"]
TokenNumber: TypeAlias = Annotated[
    int | None,
    Field(ge=NO_TOKEN, lt=2**31, json_schema_extra={"type": "integer", "default": -1, "minimum": NO_TOKEN}),
    AfterValidator(lambda number: None if number == -1 else number),
]
"""A token, or `NO_TOKEN` for none. In a run file, no number or -1 stands for the one that the host finds."""


class DataSpec(Wire):
    """The text that learners read."""

    OMITS_NONE: ClassVar[bool] = True

    source: DataSource = Field(
        "stdlib",
        description="`stdlib`: this Python's own source text; files (docs/how-to/data.md): `text`, `jsonl`, `parquet`, "
        "`tokens` that are ready, or `chat`; `hub`: a data set streamed by `datasets` (extra `[hf]`); `own`: as "
        "`model.family`",
    )
    context_tokens: int = Field(128, ge=8, le=1 << 20, description="length of one training sequence, in tokens")
    sequences_per_step: int = Field(8, ge=1, le=1 << 16, description="sequences in one inner step of one learner")
    evaluation_tokens: int = Field(32768, ge=256, le=1 << 26, description="held-out tokens behind each evaluation")
    path: str = Field(
        "",
        max_length=1024,
        pattern=LINE,
        description="the host's files, as `text/**/*.md`, which others name with `--corpus`; or the data set's name",
    )
    subset: str = Field("", max_length=256, pattern=LINE, description="configuration of a data set that has several")
    field: str = Field("text", max_length=256, pattern=LINE, description="where a line of JSON or a row holds its text")
    tokenizer: str = Field(
        "",
        max_length=1024,
        pattern=LINE,
        description="a `tokenizer.json` of the host's, which others name with `--tokenizer`, or `hub:NAME`; else bytes",
    )
    tokens_max: int = Field(1 << 28, ge=1024, le=1 << 40, description="no more tokens than these are read")
    tokenizer_sha256: str = Field(
        "", pattern=r"^([0-9a-f]{64})?$", description="names the tokenizer", json_schema_extra=BY_HOST
    )
    order: Order | None = Field(
        None,
        description="`draws`: every sequence begins anywhere; `passes`: no two peers read one window in one pass "
        "(docs/how-to/data.md)",
        json_schema_extra={"type": "string", "enum": list(get_args(Order)), "default": "draws"},
    )
    begin_token: TokenNumber = Field(
        None, description="token before each document; -1: the tokenizer's own, if it writes one; -2: none"
    )
    end_token: TokenNumber = Field(
        None,
        description="token after each document; -1: the tokenizer's own, if it has one; -2: none; or a byte of "
        "your choice",
    )
    revision: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{7,64}$",
        description="commit of the data set on the Hub; today's, if a run file names none",
        json_schema_extra=BY_HOST,
    )

    chat_template: str | None = Field(
        None,
        max_length=CHAT_TEMPLATE_CHARACTERS_MAX,
        description="with `chat`: how messages become text, in Jinja; without it the tokenizer's own",
        json_schema_extra={"type": "string", "default": ""},
    )

    borders: Borders | None = Field(
        None,
        description="of documents in one sequence: `open`: later ones see earlier ones; `closed`: each sees itself "
        "(docs/how-to/data.md)",
        json_schema_extra={"type": "string", "enum": list(get_args(Borders)), "default": "open"},
    )

    @field_validator("borders")
    @classmethod
    def _open(cls, value: Borders | None) -> Borders | None:
        """Turn the default into None, its only encoding, which earlier versions read."""
        return None if value == "open" else value

    @field_validator("order")
    @classmethod
    def _plain(cls, value: Order | None) -> Order | None:
        """Turn the default into None, its only encoding, which earlier versions read."""
        return None if value == "draws" else value

    @field_validator("chat_template")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        """Turn an empty template into None, its only encoding."""
        return value or None

    @property
    def document_tokens(self) -> tuple[int | None, int | None]:
        """The tokens before and after each document; None for none."""
        begin, end = (None if one == NO_TOKEN else one for one in (self.begin_token, self.end_token))
        return begin, end

    @property
    def is_packed(self) -> bool:
        """Whether a sequence holds whole documents, none of which sees another, and so is only cut between them."""
        return self.source == CHAT

    @property
    def is_marked(self) -> bool:
        """Whether tokens mark where documents begin, none of which sees another (`peer.data.marks`)."""
        return self.is_packed or self.borders == "closed"

    @property
    def is_in_passes(self) -> bool:
        """Whether windows are dealt out (`coordinator.chain.passes`); else every peer draws its own."""
        return self.order == "passes"
