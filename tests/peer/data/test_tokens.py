"""A tokenizer adds no tokens to a text's own, and cutting a text changes none of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from coordinator.run.data_spec import NO_TOKEN, DataSpec
from dht.errors import UsageError
from peer.data.special_tokens import special_tokens
from peer.data.tokens import Encoder, encoder

TEXT = "The quick brown fox, who was not so quick that day, jumped over the lazy dog. " * 20
END = "<|endoftext|>"


def trained(kind: str) -> Tokenizer:
    """Train a small tokenizer like GPT-2's, like Llama 1's, or like those that put a space before a text."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "spaced")
    if kind == "llama":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[END, "<s>"],
        show_progress=False,
        initial_alphabet=[] if kind == "llama" else pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    if kind == "llama":  # as converted from sentencepiece: nothing splits a text into words
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1)])
    else:
        tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZERS = {kind: trained(kind) for kind in ("gpt2", "spaced", "llama")}


def encoding(tokenizer: Tokenizer, spec: DataSpec | None = None) -> Encoder:
    return encoder(tokenizer.to_str().encode(), 1000, spec or DataSpec())


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
@given(most=st.integers(10, len(TEXT) - 1))
def test_a_text_cut_between_words_has_the_tokens_of_the_whole(kind: str, most: int):
    made = encoding(TOKENIZERS[kind])
    end, start = made.cut(TEXT, most)
    assert 0 < end <= most
    assert made.encode(TEXT).tolist() == [*made.encode(TEXT[:end]), *made.encode(TEXT[start:])]


def test_documents_of_any_length_have_the_tokens_of_the_whole():
    made = encoding(TOKENIZERS["gpt2"])
    long = TEXT * 100
    assert made.document(long).tolist() == made.encode(long).tolist()
    assert len(made.document("x" * 200_000)) > 100_000  # without any place to cut


def test_truncation_and_padding_of_a_tokenizer_are_switched_off():
    tokenizer = trained("gpt2")
    plain = encoding(tokenizer).document(TEXT)
    tokenizer.enable_truncation(6)
    tokenizer.enable_padding(length=4096)
    assert encoding(tokenizer).document(TEXT).tolist() == plain.tolist()


def test_documents_begin_and_end_with_the_tokens_of_the_run_and_nothing_special_stands_within():
    tokenizer = trained("gpt2")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    made = encoding(tokenizer, DataSpec(begin_token=1, end_token=0))
    tokens = made.document(f"the fox{END}the dog").tolist()
    assert (tokens[0], tokens[-1]) == (1, 0)
    assert not {0, 1} & set(tokens[1:-1])
    assert tokenizer.decode(tokens[1:-1], skip_special_tokens=False) == f"the fox{END}the dog"
    assert made.document("the fox", begins=False, ends=False).tolist() == made.encode("the fox").tolist()


def test_bytes_end_with_a_byte_of_ones_choice():
    made = encoder(None, 256, DataSpec(end_token=0))
    assert bytes(made.document("ab")) == b"ab\0"
    assert bytes(encoder(None, 256, DataSpec(end_token=NO_TOKEN)).document("ab")) == b"ab"
    with pytest.raises(UsageError, match="end_token = 256 is no token"):
        encoder(None, 256, DataSpec(end_token=256))


def test_the_host_finds_the_end_token_where_tokenizers_say_it(tmp_path: Path):
    plain = trained("gpt2")
    path = tmp_path / "tokenizer.json"
    assert special_tokens(plain.to_str().encode(), str(path)) == (None, 0)  # by its name
    template = trained("gpt2")
    template.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    template.enable_padding(length=64)
    assert special_tokens(template.to_str().encode(), str(path)) == (1, 0)
    config = {"add_bos_token": True, "bos_token": "<s>", "eos_token": {"content": "<s>"}}
    path.with_name("tokenizer_config.json").write_text(json.dumps(config))
    assert special_tokens(plain.to_str().encode(), str(path)) == (1, 1)
    path.with_name("tokenizer_config.json").write_text(json.dumps({"eos_token": None}))
    assert special_tokens(plain.to_str().encode(), str(path)) == (None, None)


def test_numbers_of_a_tokenizer_with_holes_are_counted_up_to_the_last():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    assert encoding(tokenizer).size == 10
    assert encoding(tokenizer).encode("b").dtype == np.int32
