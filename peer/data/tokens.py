"""Text into tokens: bytes, or a `tokenizer.json` whose hash is in the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.run.data_spec import CHAT, DataSpec
from dht.errors import UsageError
from peer.data.chat import ChatFormat
from peer.data.hub import HUB, from_hub
from peer.data.marks import BEGINS, READ

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = 256

Tokens = np.ndarray[Any, np.dtype[Any]]
PART_CHARACTERS = 1 << 13  # longer text is encoded in parts, as a tokenizer needs a hundred times its size
CUT_CHARACTERS = 1 << 10  # how far back to look for a gap between two words to cut at


@dataclass(frozen=True, slots=True)
class Encoder:
    """A converter of text into token numbers below `size`, int32 or uint8, shape (tokens,), without special tokens.

    `begin` and `end` are the tokens around each document, if it has any.
    """

    encode: Callable[[str], Tokens]
    size: int
    begin: int | None = None
    end: int | None = None
    cuts_anywhere: bool = True
    drops_space: bool = False  # the start of a part is encoded as if a space preceded it
    marks: bool = False  # mark where a piece of a document begins
    chat: ChatFormat | None = None  # for conversations, which have special tokens around messages

    @property
    def ends_documents(self) -> bool:
        """Whether the model sees where a document ends."""
        return self.end is not None

    def document(self, text: str, begins: bool = True, ends: bool = True) -> Tokens:
        """Return the tokens of a document, or of a piece that does not begin or end one."""
        parts = [self.encode(part) for part in self._parts(text)]
        if begins and self.begin is not None:
            parts.insert(0, np.array([self.begin], parts[0].dtype))
        if ends and self.end is not None:
            parts.append(np.array([self.end], parts[0].dtype))
        whole = np.concatenate(parts)
        if self.marks:  # also within a document: its pieces may be separated, as some are held out
            whole = whole.astype(np.int32)
            whole[:1] |= BEGINS | READ
        return whole

    def _parts(self, text: str) -> Iterator[str]:
        at = 0
        while len(text) - at > PART_CHARACTERS and not self.cuts_anywhere:
            end, start = self.cut(text[at : at + PART_CHARACTERS], PART_CHARACTERS)
            yield text[at : at + end]
            at += start
        yield text[at:]

    def cut(self, text: str, most: int) -> tuple[int, int]:
        """Return the end of a first part of `text`, of at most `most` characters, and the start of the next.

        It cuts between two words, so that the parts have the same tokens as the text; anywhere if no space is near.
        """
        if self.cuts_anywhere:
            return most, most
        at = most
        for _ in range(CUT_CHARACTERS):
            at = text.rfind(" ", max(1, most - CUT_CHARACTERS), at)
            if at < 0:
                return most, most
            if at + 1 < len(text) and not text[at - 1].isspace() and not text[at + 1].isspace():
                return at, at + self.drops_space
        return most, most


def encode_bytes(text: str) -> Tokens:
    """Return UTF-8 bytes as tokens: uint8."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def tokenizer_file(spec: DataSpec, given: str) -> bytes | None:
    """Return the tokenizer that the run or this machine's owner names; None for bytes. Raises UsageError.

    It must be the manifest's, because a number must mean the same piece of text everywhere.
    """
    where = given or (spec.tokenizer if spec.tokenizer.startswith(HUB) else "")  # no manifest names a local file
    if not where and not spec.tokenizer_sha256:
        return None
    if not where:
        raise UsageError("this run has a tokenizer that every peer brings; name its tokenizer.json with --tokenizer")
    if where.startswith(HUB):
        name = where.removeprefix(HUB)
        where = from_hub(name, lambda hub: hub.hf_hub_download(name, "tokenizer.json"))
    try:
        content = Path(where).read_bytes()
    except OSError as error:
        raise UsageError(f"the tokenizer {where} cannot be read: {error.strerror}") from None
    if spec.tokenizer_sha256 and hashlib.sha256(content).hexdigest() != spec.tokenizer_sha256:
        raise UsageError(f"{where} is not the run's tokenizer; ask its organiser for the file")
    return content


def encoder(content: bytes | None, vocabulary: int, spec: DataSpec) -> Encoder:
    """Return the encoder of text into tokens below `vocabulary`; raises UsageError if the tokenizer has more."""
    begin, end = spec.document_tokens
    if content is None:
        if vocabulary < BYTES:
            raise UsageError("bytes are 256 tokens; write model.vocabulary = 256 or name a tokenizer")
        made = Encoder(encode_bytes, BYTES, begin, end)
    else:
        made = _tokenizing(parse_tokenizer(content), begin, end)
    made = replace(made, marks=spec.is_marked)
    if spec.source == CHAT:
        made = replace(made, chat=_chat(content, spec))
    if made.size > vocabulary:
        raise UsageError(f"the tokenizer has {made.size} tokens; write model.vocabulary = {made.size}")
    for key, one in (("begin_token", begin), ("end_token", end)):
        if one is not None and one >= made.size:
            raise UsageError(f"data.{key} = {one} is no token: there are {made.size}, numbered from 0")
    return made


def _chat(content: bytes | None, spec: DataSpec) -> ChatFormat:
    if spec.chat_template is None:
        raise UsageError(
            "this tokenizer has no chat template; bring its chat_template.jinja or tokenizer_config.json beside it, or "
            "write one as data.chat_template (docs/how-to/data.md)"
        )
    if content is None:
        return ChatFormat(spec.chat_template)
    tokenizer = parse_tokenizer(content)
    tokenizer.encode_special_tokens = False  # the template writes special tokens; messages contain none
    special = tuple(one.content for one in tokenizer.get_added_tokens_decoder().values() if one.special)

    def offsets(text: str) -> tuple[list[int], list[int]]:
        made = tokenizer.encode(text, add_special_tokens=False)
        return made.ids, [start for start, _ in made.offsets]

    return ChatFormat(spec.chat_template, offsets, special)


def parse_tokenizer(content: bytes) -> Tokenizer:
    """Return a tokenizer from `tokenizer.json` that takes text as it is; raises UsageError if it is damaged."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
        # text is neither truncated nor padded, and text that looks like a special token is still text
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare exceptions
        raise UsageError(f"the tokenizer cannot be read: {error}") from None
    return tokenizer


def _tokenizing(tokenizer: Tokenizer, begin: int | None, end: int | None) -> Encoder:
    def encode(text: str) -> Tokens:
        # a batch of one: unlike `encode`, this releases other threads, and keeps no offsets
        return np.array(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.int32)

    try:
        whole, first = encode("one two").tolist(), encode("one").tolist()
        drops = whole == first + encode("two").tolist()
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare exceptions
        raise UsageError(f"the tokenizer cannot encode text: {error}") from None
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Encoder(encode, size, begin, end, cuts_anywhere=False, drops_space=drops)
