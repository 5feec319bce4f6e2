"""Conversations from JSON lines, packed into sequences. Other lines are left out and counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dht.errors import UsageError
from peer.data.chat import ASSISTANT, USER, ChatFormat, Conversation, Messages, UnusableError
from peer.data.marks import BEGINS, READ
from peer.data.tally import CorpusTally
from peer.data.token_writer import HELDOUT_SHARE, is_heldout_tokens
from peer.data.tokens import Tokens

LINE_BYTES_MAX = 16 << 20
MESSAGES_MAX = 1024
OPEN_ROWS_MAX = 64  # sequences that wait for a conversation that fits into their rest


def conversations(path: Path, chat: ChatFormat, tally: CorpusTally) -> Iterator[Conversation]:
    """Yield every conversation in this file that has something to learn; raises UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            for line in iter(lambda: file.readline(LINE_BYTES_MAX), b""):
                tally.read_bytes += len(line)
                try:
                    found = chat.conversation(_messages(line))
                except UnusableError as error:
                    tally.left_out[str(error)] += 1
                    continue
                tally.left_out["earlier answers that the template writes in another way, read but not learned"] += (
                    found.missed
                )
                yield found
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def _messages(line: bytes) -> Messages:
    """Return a line's messages: `messages`, or `prompt` and `completion`, each a text or a list of messages."""
    if not line.removeprefix(b"\xef\xbb\xbf").strip():
        raise UnusableError("empty lines")
    try:
        row: Any = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise UnusableError("lines that are no JSON in UTF-8") from None
    if not isinstance(row, dict):
        raise UnusableError("lines that are no JSON object")
    if "messages" in row:
        said = row["messages"]
    elif "prompt" in row and "completion" in row:
        said = [*_side(row["prompt"], USER), *_side(row["completion"], ASSISTANT)]
    else:
        raise UnusableError("lines with neither messages nor prompt and completion")
    if not isinstance(said, list) or not 1 <= len(said) <= MESSAGES_MAX:
        raise UnusableError(f"conversations that are no list of 1 to {MESSAGES_MAX} messages")
    return [_message(one) for one in said]


def _side(value: Any, role: str) -> list[Any]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def _message(value: Any) -> Mapping[str, str]:
    """Return a message's role and text; tools and pictures are not trained on."""
    role, content = (value.get("role"), value.get("content")) if isinstance(value, dict) else (None, None)
    if not isinstance(role, str) or not isinstance(content, str):
        raise UnusableError("conversations with a message that has no role or no text")
    return {"role": role, "content": content}


class RowPacker:
    """Packing of whole conversations into rows of one length; the empty rest of a row is never learned."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._open: list[list[Tokens]] = []
        self._left: list[int] = []

    def add(self, tokens: Tokens) -> Iterator[Tokens]:
        """Put at most `length` tokens into the row with the tightest fit; yields the rows that are then done."""
        fitting = [number for number, left in enumerate(self._left) if left >= len(tokens)]
        if fitting:
            at = min(fitting, key=self._left.__getitem__)
            self._open[at].append(tokens)
            self._left[at] -= len(tokens)
        else:
            at = len(self._open)
            self._open.append([tokens])
            self._left.append(self._length - len(tokens))
        if not self._left[at]:
            yield self._take(at)
        elif len(self._open) > OPEN_ROWS_MAX:
            yield self._take(min(range(len(self._open)), key=self._left.__getitem__))

    def finish(self) -> Iterator[Tokens]:
        """Yield the remaining rows."""
        while self._open:
            yield self._take(0)

    def _take(self, at: int) -> Tokens:
        parts, left = self._open.pop(at), self._left.pop(at)
        rest = np.full(left, READ, np.int32)
        rest[:1] |= BEGINS
        return np.concatenate([*parts, rest])


def packed(
    found: Iterable[Tokens], length: int, tally: CorpusTally, share: float = HELDOUT_SHARE
) -> Iterator[tuple[Tokens, bool]]:
    """Yield rows of `length` tokens, and whether they are held out, which the hash of each conversation decides.

    About `share` of the conversations is held out.
    """
    sides = RowPacker(length), RowPacker(length)
    for tokens in found:
        if len(tokens) > length:
            tally.left_out["ends of conversations that are longer than data.context_tokens"] += 1
            tokens = tokens[:length]
        if (tokens[1:] & READ).all():
            tally.left_out["conversations whose answer begins beyond data.context_tokens"] += 1
            continue
        heldout = is_heldout_tokens(tokens, share)
        yield from ((row, heldout) for row in sides[heldout].add(tokens))
    for number, side in enumerate(sides):
        yield from ((row, bool(number)) for row in side.finish())
