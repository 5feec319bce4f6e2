"""Text by an exported model: greedy like transformers' own, drawn by a seed, ended by the end token."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import ApertusConfig, AutoModelForCausalLM, LlamaConfig

import peer.export.sampler as sampler_module
from coordinator.run.data_spec import NO_TOKEN, DataSpec
from dht.errors import UsageError
from peer.data.text_codec import run_text_codec
from peer.export.listing import MANIFEST, WEIGHTS
from peer.export.sampler import Sampler
from peer.model.buffers import kept_buffers
from tests.peer.exporting import CONFIG, CertifiedRun

WORDS = ("[UNK]", "[CLS]", "[SEP]", "The", "cat", "sat")


def saved(folder: Path, vocabulary: int = 256) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_greedy_text_is_that_of_transformers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path)
    capfd.readouterr()
    sampler = Sampler.load(folder)
    assert capfd.readouterr() == ("", ""), "no bar of a library stands above the text"
    given = torch.tensor([list(b"once")])
    wanted = sampler.model.generate(given, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert sampler.write("once", 12, 0.0, seed=1) == bytes(wanted[0].tolist()).decode(errors="replace")


def test_a_seed_names_a_text(tmp_path: Path) -> None:
    sampler = Sampler.load(saved(tmp_path))
    first = sampler.write("a", 30, 1.0, seed=1)
    assert sampler.write("a", 30, 1.0, seed=1) == first
    assert sampler.write("a", 30, 1.0, seed=2) != first


def test_text_may_be_longer_than_the_context(tmp_path: Path) -> None:
    assert len(Sampler.load(saved(tmp_path)).write("a" * 60, 20, 0.0, seed=0)) > 60


def test_a_folder_that_is_not_there_is_no_name_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("asked for it"))
    with pytest.raises(UsageError, match=r"some-model holds no model that can write text: it has no config\.json"):
        Sampler.load(Path("some-model"))


def test_a_model_that_writes_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no model that can write text: it has no config\.json"):
        Sampler.load(tmp_path)
    with pytest.raises(UsageError, match="has no tokenizer"):
        Sampler.load(saved(tmp_path, vocabulary=300))
    with pytest.raises(UsageError, match="the prompt is empty"):
        Sampler.load(saved(tmp_path)).write("", 1, 0.0, seed=0)


def test_buffers_that_a_folder_lacks_are_not_what_the_memory_holds(tmp_path: Path) -> None:
    module = AutoModelForCausalLM.from_config(
        ApertusConfig(vocab_size=256, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    module.save_pretrained(tmp_path)
    buffers = kept_buffers(module)
    weights = {name: value for name, value in load_file(tmp_path / WEIGHTS).items() if name not in buffers}
    save_file(weights, tmp_path / WEIGHTS, metadata={"format": "pt"})
    found = kept_buffers(Sampler.load(tmp_path).model)
    assert len(buffers) == 2
    assert all(torch.equal(value, found[name]) for name, value in buffers.items())


@pytest.fixture(scope="module")
def template_tokenizer() -> bytes:
    """Return a tokenizer whose template puts a token before and after every text."""
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(WORDS[:3]))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made.to_str().encode()


def exported(folder: Path, tokenizer: bytes | None, **data: Any) -> CertifiedRun:
    """Write an export of a run with these settings under [data]."""
    sha = "" if tokenizer is None else hashlib.sha256(tokenizer).hexdigest()
    spec = DataSpec(source="text", context_tokens=16, tokenizer_sha256=sha, **data)
    run = CertifiedRun(CONFIG.model_copy(update={"data": spec}), tokenizer=tokenizer).advance(1)
    run.write(folder)
    return run


def scripted(monkeypatch: pytest.MonkeyPatch, following: list[int]) -> list[list[int]]:
    """Have every model write these tokens; returns the list of prompts, to which each new one is added."""
    prompts: list[list[int]] = []

    def write(model: Any, given: list[int], *_: Any) -> Iterator[int]:
        prompts.append(given)
        return iter(following)

    monkeypatch.setattr(sampler_module, "following_tokens", write)
    return prompts


@pytest.mark.parametrize("begin", [1, NO_TOKEN, None])
def test_a_prompt_has_the_tokens_that_a_document_of_its_run_begins_with(
    begin: int | None, template_tokenizer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = exported(tmp_path / "export", template_tokenizer, begin_token=begin, end_token=2)
    words = run_text_codec(run.config, template_tokenizer)
    assert words is not None
    prompts = scripted(monkeypatch, [5, 2])
    sampler = Sampler.load(tmp_path / "export")
    assert sampler.write("The cat", 9, 0.0, seed=0) == "The cat sat"
    assert prompts == [words.encode("The cat")]


def test_a_folder_without_a_run_begins_prompts_as_its_tokenizer_does(
    template_tokenizer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(tmp_path / "export", template_tokenizer, begin_token=1, end_token=2)
    (tmp_path / "export" / MANIFEST).unlink()
    prompts = scripted(monkeypatch, [5, 2])
    sampler = Sampler.load(tmp_path / "export")
    assert [sampler.write(one, 9, 0.0, seed=0) for one in ("The cat", "")] == ["The cat sat", "sat"]
    assert prompts == [[1, 3, 4], [1]]


def test_a_prompt_of_bytes_begins_with_its_runs_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported(tmp_path / "export", None, begin_token=0)
    prompts = scripted(monkeypatch, list(b"bc"))
    assert Sampler.load(tmp_path / "export").write("a", 9, 0.0, seed=0) == "abc"
    assert prompts == [[0, *b"a"]]


@pytest.mark.parametrize("kept", ["config.json", MANIFEST])
def test_text_ends_with_a_byte_that_ends_documents_of_its_run(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(tmp_path / "export", None, end_token=0)
    if kept != MANIFEST:
        (tmp_path / "export" / MANIFEST).unlink()
    scripted(monkeypatch, list(b"b\0New"))
    sampler = Sampler.load(tmp_path / "export")
    if kept == MANIFEST:
        sampler.model.generation_config.eos_token_id = sampler.model.config.eos_token_id = None
    assert sampler.tokenizer is not None
    assert sampler.tokenizer.eos_token_id is None
    assert sampler.write("a", 9, 0.0, seed=0) == "ab"


def test_text_ends_with_an_end_token_that_is_not_marked_special(
    template_tokenizer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(tmp_path / "export", template_tokenizer, end_token=5)
    scripted(monkeypatch, [4, 5, 3])
    assert Sampler.load(tmp_path / "export").write("The", 9, 0.0, seed=0) == "The cat"


@pytest.mark.parametrize("ends", [ord("c"), [0, ord("c")]])
def test_text_ends_where_transformers_would_stop(
    ends: int | list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler.load(saved(tmp_path))
    sampler.model.generation_config.eos_token_id = ends
    scripted(monkeypatch, list(b"bcd"))
    assert sampler.write("a", 9, 0.0, seed=0) == "ab"


def test_an_answer_ends_with_the_end_token_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for message in messages %}{{ message.content }}|{% endfor %}"
    exported(tmp_path / "export", None, end_token=0, chat_template=template)
    scripted(monkeypatch, list(b"Yes\0No"))
    assert Sampler.load(tmp_path / "export").answer("Well?", 9, 0.0, seed=0) == "Yes"
