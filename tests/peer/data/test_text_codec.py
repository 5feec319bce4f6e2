"""Tokens as people read them: with the run's tokenizer, as bytes, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.data.text_codec import BYTE_TEXT, first_words, run_text_codec
from peer.data.token_files import TokenData
from peer.model.build import initial_parameters
from peer.numerics.fragments import gather
from peer.rounds.evaluation_loop import EvaluationLoop
from peer.storage.anchors import layouts_of

TEXT = "The boat is small. The lake is wide, and the boat wants to see the other side of the lake.\n"
END = "<|end|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Train a byte-level BPE tokenizer, as most models have; returns its file."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([TEXT] * 20, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path.read_bytes()


def run_with(tokenizer: bytes | None, **data: object) -> RunConfig:
    sha = "" if tokenizer is None else hashlib.sha256(tokenizer).hexdigest()
    return RunConfig(
        model=ModelSpec(hidden_size=32, layers=1, heads=2, intermediate_size=48, vocabulary=300 if tokenizer else 256),
        data=DataSpec(context_tokens=16, sequences_per_step=2, evaluation_tokens=256, tokenizer_sha256=sha, **data),
        pace=PaceSpec(fragments=2),
    )


def test_text_comes_back_from_the_tokens_of_a_tokenizer(tokenizer: bytes) -> None:
    words = run_text_codec(run_with(tokenizer), tokenizer)
    assert words is not None
    found = words.encode(TEXT)
    assert len(found) < len(TEXT) / 2
    assert words.decode(found) == TEXT
    assert words.decode([*found, 0]) == TEXT, "the end of a document is no text"
    begun = run_text_codec(run_with(tokenizer, begin_token=0), tokenizer)
    assert begun is not None
    assert begun.encode(TEXT) == [0, *found]


def test_bytes_are_text_and_tokens_without_a_tokenizer_are_not(tokenizer: bytes) -> None:
    assert run_text_codec(run_with(None), None) is BYTE_TEXT
    assert BYTE_TEXT.decode([*BYTE_TEXT.encode("ä"), 255]) == "ä\ufffd"
    assert run_text_codec(run_with(tokenizer), None) is None
    other = run_with(None).model_copy(update={"model": run_with(tokenizer).model})
    assert run_text_codec(other, None) is None


def test_the_first_words_of_a_model_fit_its_text_and_its_tokens(tokenizer: bytes) -> None:
    assert [first_words(run_with(one)) for one in (None, tokenizer)] == ["def ", "def"]
    assert [first_words(run_with(one, source="text", path="a")) for one in (None, tokenizer)] == ["The ", "The"]


@pytest.fixture
def loops() -> Iterator[list[EvaluationLoop]]:
    made: list[EvaluationLoop] = []
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize("here", [True, False])
def test_a_host_shows_text_of_a_model_with_a_tokenizer(
    here: bool, tokenizer: bytes, loops: list[EvaluationLoop], tmp_path: Path
) -> None:
    config = run_with(tokenizer)
    words = run_text_codec(config, tokenizer)
    assert words is not None
    heldout = torch.tensor(words.encode(TEXT) * 40, dtype=torch.int32)
    loop = EvaluationLoop(
        config, TokenData(heldout, heldout, bytes(32)), lambda: anchors, text_codec=lambda: words if here else None
    )
    loops.append(loop)
    anchors = [gather(layout, initial_parameters(config.model, config.seed)) for layout in layouts_of(config)]
    written = asyncio.run(loop.sample())
    assert written.startswith("def" if here else "")
    assert (len(written) > 100) == here
    assert loop.newest_text == written
