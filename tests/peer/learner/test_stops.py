"""A model that is trained on documents with ends learns to end its text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.data.windows import TrainingWindows, load_tokens
from peer.learner.learner import make_learner
from peer.model.description import Description, describe
from tests.peer.matrix.test_matrix import certified_states, export

TEXTS = [f"{name} has {number} apples" for name in ("Ann", "Ben", "Cem", "Dua") for number in range(200)]
STEPS, SAMPLED, LONGEST = 60, 250, 24  # a document has at most 18 bytes


def described_run(tmp_path: Path, over_bytes: bool) -> Description:
    """Describe a run over many short documents, with a tokenizer that has an end token, or over bytes with one."""
    corpus, tokenizer_path = tmp_path / "rows.jsonl", tmp_path / "tokenizer.json"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.save(str(tokenizer_path))
    named = {"end_token": 0} if over_bytes else {"tokenizer": str(tokenizer_path)}
    data = DataSpec.model_validate(
        {
            "source": "jsonl",
            "path": str(corpus),
            "context_tokens": 16,
            "sequences_per_step": 16,
            "evaluation_tokens": 256,
        }
        | named
    )
    return describe(
        RunConfig(
            versions=20,
            model=ModelSpec(hidden_size=32, layers=1, heads=2, intermediate_size=64, vocabulary=300 - 44 * over_bytes),
            data=data,
            inner=InnerSpec(optimizer="adamw", warmup_steps=4, learning_rate=1e-2),
            pace=PaceSpec(fragments=1, steps_per_version=6),
        )
    )


@pytest.mark.parametrize("over_bytes", [False, True])
def test_sampled_text_contains_the_end_token(tmp_path: Path, over_bytes: bool):
    described = described_run(tmp_path, over_bytes)
    config = described.config
    assert config.data.end_token == 0  # of the tokenizer, by its name
    tokens = load_tokens(config.data, config.model.vocabulary, described.files)
    learner = make_learner(config, TrainingWindows(tokens.train, config.data, b"run", "peer"))
    for _ in range(STEPS):
        learner.step()
    written, generator = [0], torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for _ in range(SAMPLED):
            logits = learner.model(input_ids=torch.tensor([written[-16:]]), use_cache=False).logits[0, -1]
            written.append(int(torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)))
    ends = float((tokens.train.long() == 0).double().mean())
    share = written.count(0) / len(written)
    assert ends / 4 < share < 2 * ends  # by chance it is one in 256


@pytest.mark.slow
@pytest.mark.parametrize("over_bytes", [False, True])
def test_text_of_a_certified_model_stops(tmp_path: Path, over_bytes: bool):
    """The same holds for a run of two learners: `generate` stops before its limit on the export."""
    described = described_run(tmp_path, over_bytes)
    states = certified_states(described, steps=STEPS)
    export(described, tmp_path / "export", states)
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "export").eval()
    torch.manual_seed(1)
    start = torch.zeros(32, 1, dtype=torch.int64)  # where the document before has ended
    written = loaded.generate(start, max_new_tokens=LONGEST, do_sample=True)
    assert int((written[:, 1:] == 0).any(1).sum()) > 12  # by chance 3
