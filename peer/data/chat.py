"""Conversations as text by the run's chat template, and as tokens; only the assistant's tokens are learned.

A template is a program by an unknown author; it runs in the sandbox that `transformers` provides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dht.errors import UsageError
from peer.data.marks import BEGINS, READ
from peer.machine.text import first_line

ASSISTANT, USER = "assistant", "user"
_GENERATION = re.compile(r"{%-?\s*generation\s*-?%}")  # encloses the assistant's part, if a template marks it
_DATE, _DATE_GIVEN = "strftime_now", "date_string"
_SOME_DATE = "26 Jul 2024"  # the date that Llama's own template writes if it has none
_TOKEN_NAME = re.compile(r"\b(bos|eos|unk|pad|sep|cls)_token\b")

Messages = Sequence[Mapping[str, str]]
_EXAMPLE: Messages = ({"role": USER, "content": "Hello"}, {"role": ASSISTANT, "content": "Good morning"})
Spans = tuple[tuple[int, int], ...]
Tokens = np.ndarray[Any, np.dtype[Any]]
Offsets = Callable[[str], tuple[Sequence[int], Sequence[int]]]
"""Returns the tokens of a text with special tokens in it, and the index of each token's first character."""


class UnusableError(Exception):
    """A conversation that is left out; the message is the reason, as a plural noun phrase."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A rendered conversation; `spans` are the characters to learn. `missed` answers are only read."""

    text: str
    spans: Spans
    missed: int = 0


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A run's template, and its tokenizer, or None for bytes. Messages must not contain `special` texts."""

    template: str
    offsets: Offsets | None = None
    special: tuple[str, ...] = ()

    def text(self, messages: Messages, asks: bool = False) -> str:
        """Return messages as text, up to the start of the assistant's answer if it `asks`. Raises UnusableError."""
        return self._rendered(messages, asks)[0]

    def conversation(self, messages: Messages) -> Conversation:
        """Return the rendered conversation; raises UnusableError if it has nothing to learn."""
        if any(special in message["content"] for message in messages for special in self.special):
            raise UnusableError("conversations that spell out a special token")
        if not any(message["role"] == ASSISTANT for message in messages):
            raise UnusableError("conversations without an answer")
        whole, said = self._rendered(messages)
        if _GENERATION.search(self.template):
            return self._learned(Conversation(whole, tuple(said)))
        spans, missed = [], 0
        for number, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                asked = self.text(messages[:number], asks=True)
                answered = self.text(messages[: number + 1])
                if answered.startswith(asked) and whole.startswith(answered):
                    spans.append((len(asked), len(answered)))
                else:
                    missed += 1  # the template writes it differently once other messages follow
        return self._learned(Conversation(whole, tuple(spans), missed))

    def encode(self, conversation: Conversation) -> Tokens:
        """Return marked tokens, int32, shape (tokens,)."""
        text = conversation.text
        if self.offsets is None:
            found, begins = _bytes_of(text)
        else:
            found, begins = (np.array(one, np.int32) for one in self.offsets(text))
        learned = np.zeros(len(text) + 1, bool)
        for start, end in conversation.spans:
            learned[start:end] = True
        tokens = np.where(learned[begins], found, found | READ).astype(np.int32)
        tokens[:1] |= BEGINS | READ
        return tokens

    def answer_end(self) -> str:
        """Return the text that the template writes after an answer, from which a model learns to end one."""
        return self.text(_EXAMPLE).rpartition(_EXAMPLE[-1]["content"])[2]

    def _learned(self, conversation: Conversation) -> Conversation:
        if not any(start < end for start, end in conversation.spans):
            raise UnusableError("conversations whose answers the template writes in no place of their own")
        return conversation

    def _rendered(self, messages: Messages, asks: bool = False) -> tuple[str, list[tuple[int, int]]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        tracked = not asks and bool(_GENERATION.search(self.template))
        try:
            texts, said = render_jinja_template(
                [[dict(message) for message in messages]],
                chat_template=self.template,
                return_assistant_tokens_mask=tracked,
                add_generation_prompt=asks,
            )
            texts[0].encode()
        except Exception as error:
            raise UnusableError("conversations that the chat template refuses") from error
        return texts[0], said[0] if tracked else []


def _bytes_of(text: str) -> tuple[Tokens, Tokens]:
    """Return the UTF-8 bytes, and the index of the character that each byte belongs to."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32), np.repeat(np.arange(len(text)), lengths)


def closed_template(template: str, named: Mapping[str, str]) -> str:
    """Return a template that sets the special tokens it uses, so that no other input is needed; raises UsageError.

    `named` has their texts, by names such as `bos_token`.
    """
    fixed = {f"{name}_token": named.get(f"{name}_token", "") for name in _TOKEN_NAME.findall(template)}
    if _DATE_GIVEN in template:
        fixed[_DATE_GIVEN] = _SOME_DATE
    elif _DATE in template:
        raise UsageError(
            "the chat template writes today's date, which peers would read differently; write a data.chat_template "
            "with a fixed one"
        )
    made = ChatFormat(
        "".join(f"{{% set {name} = {_quoted(text)} %}}" for name, text in sorted(fixed.items())) + template
    )
    try:
        made.conversation(_EXAMPLE)
        if not made.answer_end():
            raise UsageError("the chat template ends answers with nothing, so a model would never learn to stop")
    except UnusableError as error:
        reason = first_line(error.__cause__ or error)
        raise UsageError(f"the chat template cannot be used on a question and its answer: {reason}") from None
    return made.template


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
