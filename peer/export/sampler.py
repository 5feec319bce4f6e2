"""Generates text with an exported model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import torch

from dht.errors import UsageError
from peer.data.chat import USER, ChatFormat
from peer.data.special_tokens import special_tokens
from peer.data.windows import BYTE_VOCABULARY
from peer.export.adapter_files import ADAPTER_CONFIG
from peer.export.merged import ADAPTER_FOLDER, load_adapted
from peer.export.model_files import CONFIG, TOKENIZER
from peer.export.source import manifest_of_export
from peer.learner.evaluation import following_tokens
from peer.model.base import base_folder
from peer.model.given import read_model


@dataclass(frozen=True, slots=True)
class Sampler:
    """A model and its tokenizer; without a tokenizer its tokens are bytes.

    `begin` and `end` are the tokens around each document of its run, if it has any.
    """

    model: Any
    tokenizer: Any | None
    begin: int | None = None
    end: int | None = None

    @classmethod
    def load(cls, folder: Path, base: str = "") -> Sampler:
        """Load the model in this folder; raises UsageError if it holds no causal language model that writes text.

        `base` is the folder of the base model, if this folder holds an adapter.
        """
        from transformers import AutoTokenizer

        if not any((folder / name).is_file() for name in (CONFIG, ADAPTER_CONFIG)):
            # `transformers` would ask the Hub for a name that is no folder here
            raise UsageError(f"{folder} holds no model that can write text: it has no {CONFIG}")
        try:
            if (folder / ADAPTER_CONFIG).exists():
                model = load_adapted(folder, base_folder(base)).eval()
            else:
                model = read_model(folder).eval()
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"{folder} holds no model that can write text: {reason}") from None
        begin, end = _document_tokens(folder)
        if (folder / TOKENIZER).exists():
            return cls(model, AutoTokenizer.from_pretrained(folder, local_files_only=True), begin, end)
        if model.config.vocab_size != BYTE_VOCABULARY:
            raise UsageError(f"{folder} has no tokenizer, so its model's tokens cannot be read as text")
        return cls(model, None, begin, end)

    def write(self, prompt: str, tokens: int, temperature: float, seed: int) -> str:
        """Continue the prompt by at most so many tokens, or to the end token; the same seed gives the same text."""
        begin = [] if self.begin is None else [self.begin]
        given = [*begin, *self._encode(prompt)]
        if not given:
            raise UsageError("the prompt is empty; give at least one character with --prompt")
        context = getattr(self.model.config, "max_position_embeddings", None) or len(given) + tokens
        generator = torch.Generator().manual_seed(seed)
        ends = self._ends()
        following = following_tokens(self.model, given, generator, context, temperature)
        found = takewhile(lambda token: token not in ends, islice(following, tokens))
        return self._decode([*given[len(begin) :], *found])

    def answer(self, question: str, tokens: int, temperature: float, seed: int) -> str:
        """Return the model's answer, asked in its chat template; raises UsageError if it has none."""
        tokenizer = self.tokenizer
        if tokenizer is None or tokenizer.chat_template is None:
            raise UsageError("this model was not trained on conversations: it has no chat template; leave out --chat")
        messages = [{"role": USER, "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        given = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        context = getattr(self.model.config, "max_position_embeddings", None) or len(given) + tokens
        generator, end = (
            torch.Generator().manual_seed(seed),
            ChatFormat(tokenizer.chat_template).answer_end().rstrip() or "\n",
        )
        ends = self._ends()
        found: list[int] = []
        for token in islice(following_tokens(self.model, given, generator, context, temperature), tokens):
            if token in ends:
                break
            found.append(token)
            said = str(tokenizer.decode(found))
            if end in said:
                return said.partition(end)[0]
        return self._decode(found)

    def _ends(self) -> frozenset[int | None]:
        """Return the tokens that end a text: the run's, the tokenizer's, and those at which `transformers` stops."""
        generation = getattr(self.model, "generation_config", None)
        stops = getattr(generation, "eos_token_id", None)
        if stops is None:
            stops = getattr(self.model.config, "eos_token_id", None)
        own = None if self.tokenizer is None else self.tokenizer.eos_token_id
        return frozenset((self.end, own, *(stops if isinstance(stops, (list, tuple)) else (stops,))))

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            return list(text.encode(errors="replace"))
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _decode(self, tokens: list[int]) -> str:
        if self.tokenizer is None:
            return bytes(tokens).decode(errors="replace")
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def _document_tokens(folder: Path) -> tuple[int | None, int | None]:
    """Return the tokens around documents of this folder's run, or those of its tokenizer if no run is known."""
    for place in (folder, folder / ADAPTER_FOLDER):
        manifest = manifest_of_export(place)
        if manifest is not None:
            return manifest.config.data.document_tokens
    path = folder / TOKENIZER
    return special_tokens(path.read_bytes(), str(path)) if path.exists() else (None, None)
