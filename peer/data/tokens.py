"""Text into tokens: bytes, or a `tokenizer.json` whose hash the manifest holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.run.data_spec import CHAT, NO_TOKEN, DataSpec
from dht.errors import UsageError
from peer.data.chat import ChatFormat
from peer.data.hub import HUB, from_hub
from peer.data.marks import BEGINS, READ

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = 256

Tokens = np.ndarray[Any, np.dtype[Any]]
PART_CHARACTERS = 1 << 13  # more text is encoded in parts, since what a tokenizer makes takes a hundred times its room
CUT_CHARACTERS = 1 << 10  # so far back a part is cut between two words


@dataclass(frozen=True, slots=True)
class Encoder:
    """Text into token numbers below `size`, int32 or uint8, shape (tokens,), with nothing of its own in them.

    `begin` and `end` are the tokens around each document, where it has any.
    """

    encode: Callable[[str], Tokens]
    size: int
    begin: int | None = None
    end: int | None = None
    cuts_anywhere: bool = True
    drops_space: bool = False  # what begins a part is encoded as if a space went before it
    marks: bool = False  # where a piece of a document begins
    chat: ChatFormat | None = None  # of conversations, which have tokens of their own around what is said

    @property
    def ends_documents(self) -> bool:
        """Whether the model sees where a document ends."""
        return self.end is not None

    def document(self, text: str, begins: bool = True, ends: bool = True) -> Tokens:
        """The tokens of a document, or of a piece of one that does not begin or end here."""
        parts = [self.encode(part) for part in self._parts(text)]
        if begins and self.begin is not None:
            parts.insert(0, np.array([self.begin], parts[0].dtype))
        if ends and self.end is not None:
            parts.append(np.array([self.end], parts[0].dtype))
        whole = np.concatenate(parts)
        if self.marks:  # also within a document, whose pieces may be apart: some are held out
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
        """Where a first part of `text` ends, which has at most this many characters, and where the next begins.

        Between two words, so that the parts have the tokens that the text has; anywhere, where no space is near.
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
    """UTF-8, a token each: uint8."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def tokenizer_file(spec: DataSpec, given: str) -> bytes | None:
    """The tokenizer that the run names or this machine's owner does; None for bytes. Raises UsageError.

    What is not the manifest's is refused: the same number has to mean the same piece of text everywhere.
    """
    where = given or (spec.tokenizer if spec.tokenizer.startswith(HUB) else "")  # no manifest names a file here
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
    """What turns text into tokens below `vocabulary`; raises UsageError if the tokenizer has more of them."""
    begin, end = (None if one == NO_TOKEN else one for one in (spec.begin_token, spec.end_token))
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
    tokenizer.encode_special_tokens = False  # the template writes them; what is said has none
    special = tuple(one.content for one in tokenizer.get_added_tokens_decoder().values() if one.special)

    def offsets(text: str) -> tuple[list[int], list[int]]:
        made = tokenizer.encode(text, add_special_tokens=False)
        return made.ids, [start for start, _ in made.offsets]

    return ChatFormat(spec.chat_template, offsets, special)


def parse_tokenizer(content: bytes) -> Tokenizer:
    """A `tokenizer.json` that takes text as it is; raises UsageError if it is damaged."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
        # a text is neither cut off nor filled up, and what looks like a special token in it is text
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare exceptions
        raise UsageError(f"the tokenizer cannot be read: {error}") from None
    return tokenizer


def _tokenizing(tokenizer: Tokenizer, begin: int | None, end: int | None) -> Encoder:
    def encode(text: str) -> Tokens:
        # a batch of one: unlike `encode`, this lets other threads work, and keeps no offsets
        return np.array(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.int32)

    try:
        whole, first = encode("one two").tolist(), encode("one").tolist()
        drops = whole == first + encode("two").tolist()
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare exceptions
        raise UsageError(f"the tokenizer cannot encode text: {error}") from None
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Encoder(encode, size, begin, end, cuts_anywhere=False, drops_space=drops)
