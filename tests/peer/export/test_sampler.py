"""Text by an exported model: greedy like transformers' own, drawn by a seed, ended by the end token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ApertusConfig, AutoModelForCausalLM, LlamaConfig

from dht.errors import UsageError
from peer.export.listing import WEIGHTS
from peer.export.sampler import Sampler
from peer.model.buffers import kept_buffers


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
