"""Small corpora, tokenizers and models of every kind that users bring, written as they would write them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.peer.local_hub import LocalHub

DATA_SET = "some/prose"
VOCABULARY = 320
WORDS = (
    *("the", "river", "ran", "under", "a", "bridge", "where", "old", "men", "sold", "apples", "and", "told", "each"),
    *("other", "what", "winter", "had", "been", "like"),
)
FIELDS = 12  # words of a sentence, about

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-gqa-tied": {"family": "llama", "settings": {"num_key_value_heads": 1, "tie_word_embeddings": True}},
    "llama-gqa-untied": {"family": "llama", "settings": {"num_key_value_heads": 1, "tie_word_embeddings": False}},
    "gpt2": {"family": "gpt2"},
    "qwen2": {"family": "qwen2", "settings": {"num_key_value_heads": 1}},
    "qwen3": {"family": "qwen3", "settings": {"num_key_value_heads": 1, "head_dim": 8}},
    "mistral": {"family": "mistral", "settings": {"num_key_value_heads": 1, "sliding_window": 8}},
    "gemma": {"family": "gemma", "settings": {"num_key_value_heads": 1, "head_dim": 8}},
    "gemma3": {"family": "gemma3_text", "settings": {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 8}},
    "phi": {"family": "phi", "settings": {"partial_rotary_factor": 0.5}},
    "phi3": {"family": "phi3"},
    "mixture": {"family": "mixtral", "settings": {"num_local_experts": 3, "num_experts_per_tok": 2}},
    "mamba": {"family": "mamba", "weights": "given", "settings": {"state_size": 4}},
}


def model_keys(family: str) -> dict[str, Any]:
    """Return the `[model]` table of a run with a small model of this family."""
    sizes = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 24}
    return sizes | FAMILIES[family]


def prose(seed: int) -> str:
    """Return one document of a few sentences."""
    draw = random.Random(seed)
    sentences = (" ".join(draw.choices(WORDS, k=draw.randint(4, FIELDS))) for _ in range(draw.randint(2, 5)))
    return ". ".join(sentence.capitalize() for sentence in sentences) + ".\n"


def write_corpus(folder: Path, source: str, documents: int = 200, tokenizer: Path | None = None) -> str:
    """Write a corpus in the form of this source; returns the value of `data.path`."""
    texts = [prose(seed) for seed in range(documents)]
    path = folder / f"corpus.{source}"
    if source == "text":
        path.write_text("".join(texts), encoding="utf-8")
    elif source == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    elif source == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    elif source == "tokens":
        path = folder / "corpus.npy"
        np.save(path, np.array(_numbers("".join(texts), tokenizer), dtype=np.uint16))
    return str(path)


def _numbers(text: str, tokenizer: Path | None) -> list[int]:
    """Return the tokens of a text as users make them beforehand: by the tokenizer, or as bytes."""
    from tokenizers import Tokenizer

    return list(text.encode()) if tokenizer is None else Tokenizer.from_file(str(tokenizer)).encode(text).ids


def write_data_set(hub: LocalHub) -> str:
    """Write the corpus as a data set of the Hub; returns its name."""
    write_corpus(hub.folder("datasets", DATA_SET), "jsonl")
    return DATA_SET


def write_tokenizer(folder: Path) -> Path:
    """Train a byte-level BPE tokenizer with an end token on the prose; returns its path."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 8, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator((prose(seed) for seed in range(100)), trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path
