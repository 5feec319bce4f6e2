"""The run files that users start from work, with smaller sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coordinator.run.model_spec import ModelSpec
from peer.cli.main import run
from peer.model.families import make_module
from tests.checkout import ROOT
from tests.peer.matrix.materials import VOCABULARY, write_corpus, write_tokenizer

pytestmark = pytest.mark.timeout(240)  # its first import of GPT-2 takes long on a busy machine

PYTHON = (3, 11)
CUT = {
    "data.context_tokens": 16,
    "data.sequences_per_step": 2,
    "data.evaluation_tokens": 256,
    "inner.optimizer": "adamw",
    "inner.warmup_steps": 1,
    "pace.fragments": 4,
    "pace.steps_per_version": 4,
}


def tried(name: str, folder: Path, **more: object) -> int:
    """Run `muster lab` on this preset with small sizes, over a corpus of our own; returns its exit code."""
    settings = CUT | {"data.path": write_corpus(folder, "text"), "data.tokenizer": str(write_tokenizer(folder))} | more
    cut = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    file = str(ROOT / "examples" / f"{name}.toml")
    return run(["lab", file, "--no-ui", "--learners", "2", "--steps", "8", *cut], PYTHON)


def test_gpt2_124m_begins_from_text_and_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"model.hidden_size": 16, "model.layers": 2, "model.heads": 2, "model.vocabulary": VOCABULARY}
    assert tried("gpt2-124m", tmp_path, **small) == 0
    assert "agreement" in capsys.readouterr().out


def test_continue_begins_from_given_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(3)
    spec = ModelSpec(family="gpt2", hidden_size=16, layers=2, heads=2, vocabulary=VOCABULARY)
    make_module(spec, 16).save_pretrained(tmp_path / "model")
    assert tried("continue", tmp_path, **{"model.source": str(tmp_path / "model")}) == 0
    assert "agreement" in capsys.readouterr().out


def test_chat_lora_teaches_a_base_to_talk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It trains on the shipped conversations, over a base in four bits."""
    torch.manual_seed(3)
    tokenizer = write_tokenizer(tmp_path)
    tokenizer.with_name("chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    spec = ModelSpec(hidden_size=64, layers=1, heads=2, intermediate_size=128, vocabulary=VOCABULARY)
    make_module(spec, 64).save_pretrained(tmp_path / "model")
    more = {"model.source": str(tmp_path / "model"), "data.path": str(ROOT / "examples/chat-lora/chats.jsonl")}
    assert tried("chat-lora", tmp_path, **more, **{"data.context_tokens": 64}) == 0
    assert "agreement" in capsys.readouterr().out
