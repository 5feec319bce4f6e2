"""Tokens as readable text: prompts for a model, and the text it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.run.manifest import RunConfig
from peer.data.tokens import BYTES, parse_tokenizer


@dataclass(frozen=True, slots=True)
class TextCodec:
    """Conversion of text into tokens and back; tokens that are not text are replaced or left out."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]


BYTE_TEXT = TextCodec(lambda text: list(text.encode()), lambda tokens: bytes(tokens).decode(errors="replace"))


def run_text_codec(config: RunConfig, tokenizer: bytes | None) -> TextCodec | None:
    """Return a run's text codec; None if its tokens cannot be read here. `tokenizer` is the run's `tokenizer.json`.

    Raises UsageError if that is damaged.
    """
    if not config.data.tokenizer_sha256:
        return BYTE_TEXT if config.model.vocabulary == BYTES else None
    if tokenizer is None:
        return None
    reads = parse_tokenizer(tokenizer)
    token, _ = config.data.document_tokens
    begin = [] if token is None else [token]

    def encode(text: str) -> list[int]:
        return [*begin, *reads.encode(text, add_special_tokens=False).ids]

    def decode(tokens: Sequence[int]) -> str:
        return str(reads.decode(list(tokens), skip_special_tokens=True))

    return TextCodec(encode, decode)


def first_words(config: RunConfig) -> str:
    """Return a prompt for a model's samples: a beginning that is frequent in its text."""
    word = "def" if config.data.source == "stdlib" else "The"
    return word if config.data.tokenizer_sha256 else f"{word} "  # most tokens include the space before a word
