"""`muster eval`: a certified model's loss on the run's held-out text and on the user's own text."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from coordinator.run.data_spec import DataSpec
from peer.cli.main import run
from peer.data.windows import evaluation_windows, load_tokens
from peer.export.judging import Judge, Judged
from peer.learner.evaluation import heldout_loss, window_losses
from peer.machine.local_files import LocalFiles
from tests.peer.exporting import CONFIG, CertifiedRun

PYTHON = (3, 12)
TEXT = "".join(f"the line of number {number} says {number * number}\n" for number in range(200))


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, object]]:
    assert run(["eval", *words, "--json"], PYTHON) == code
    return json.loads(capsys.readouterr().out) if not code else []


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return CertifiedRun().advance(2).write(tmp_path / "export")


def test_the_standard_librarys_held_out_text_is_that_of_the_host(export: Path, capsys: pytest.CaptureFixture[str]):
    (found,) = told(capsys, str(export))
    from transformers import AutoModelForCausalLM

    windows = evaluation_windows(load_tokens(CONFIG.data).heldout, CONFIG.data, CONFIG.seed)
    expected = heldout_loss(AutoModelForCausalLM.from_pretrained(export), windows)
    assert found["nats_per_token"] == pytest.approx(expected, rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(expected / math.log(2), rel=1e-4)  # a byte is a token
    assert found["tokens"] == windows[:, 1:].numel()
    assert "not the one that the run began with" in str(found["note"])


def test_the_device_is_chosen_as_for_a_host(
    export: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert told(capsys, str(export), "--device", "auto") == told(capsys, str(export))
    told(capsys, str(export), "--device", "cuda", code=2)
    assert capsys.readouterr().err == "--device cuda: torch finds no GPU here; choose --device cpu, or auto\n"


def test_text_of_ones_own_is_read_whole(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.txt").write_text(TEXT)
    (tmp_path / "mine.jsonl").write_text(json.dumps({"text": TEXT.removesuffix("\n")}) + "\n\n")
    _, text, rows = told(capsys, str(export), *(f"--text={tmp_path}/mine.{kind}" for kind in ("txt", "jsonl")))
    assert text["tokens"] == (len(TEXT) - 1) // 16 * 16
    assert (text["nats_per_token"], text["standard_error"]) == (rows["nats_per_token"], rows["standard_error"])
    assert rows["note"] == "left out 1 empty lines"
    assert run(["eval", str(export), "--text", str(tmp_path / "mine.txt")], PYTHON) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert f"{text['nats_per_token']:.4f} ± {text['standard_error']:.4f} nats per token, perplexity" in line


def test_bits_per_byte_are_unknown_where_tokens_came_without_text(export: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    np.save(tmp_path / "b.npy", np.ones(3000, np.uint8))
    judge = Judge.of_export(export, "cpu")
    known, *unknown = (
        judge.own_text(LocalFiles(",".join(f"{tmp_path}/{name}" for name in names)))
        for names in (["a.txt"], ["b.npy"], ["a.txt", "b.npy"], ["b.npy", "a.txt"])
    )
    assert known.bytes_per_token == 1
    assert [(one.bytes_per_token, one.bits_per_byte) for one in unknown] == [(0, None)] * 3


def test_the_standard_error_is_that_of_the_mean_over_sequences(export: Path):
    windows = torch.randint(0, 256, (50, 17), generator=torch.Generator().manual_seed(1))
    judge = Judge.of_export(export, "cpu")
    with judge._flat.under(judge._anchors) as model:
        losses, counts = window_losses(model, windows)
        assert counts.tolist() == [16] * 50
        assert float(losses.mean()) == pytest.approx(heldout_loss(model, windows), rel=1e-5)
    assert Judged("", math.log(8), None, 1, 16, 1.5).bits_per_byte == pytest.approx(2)
    assert Judged("", math.log(8), None, 1, 16, 0).bits_per_byte is None
    assert Judged("", math.log(8), None, 1, 16, 0).perplexity == pytest.approx(8)


def test_a_run_over_files_has_its_text_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(256)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    content = tokenizer.to_str().encode()
    data = DataSpec(source="text", context_tokens=16, end_token=7, tokenizer_sha256=hashlib.sha256(content).hexdigest())
    made = CertifiedRun(CONFIG.model_copy(update={"data": data}), tokenizer=content).advance(1)
    export = made.write(tmp_path / "export")
    (tmp_path / "a.txt").write_text(TEXT * 20)
    assert json.loads((export / "config.json").read_text())["eos_token_id"] == 7  # so that `generate` stops there
    assert told(capsys, str(export), code=2) == []
    run_text, own = told(capsys, str(export), f"--corpus={tmp_path}/a.txt", f"--text={tmp_path}/a.txt")
    everything = load_tokens(data, files=LocalFiles(f"{tmp_path}/a.txt", str(export / "tokenizer.json")))
    assert int(own["tokens"]) > int(run_text["tokens"]) > 0  # type: ignore[call-overload]
    ratio = len(TEXT * 20) / (len(everything.train) + len(everything.heldout))
    assert float(own["nats_per_token"]) / float(own["bits_per_byte"]) / math.log(2) == pytest.approx(ratio, rel=0.01)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "words"), [("x", "fewer than a sequence"), (None, "there is no file")])
def test_a_text_that_cannot_be_judged_is_one_sentence(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: str
):
    if text is not None:
        (tmp_path / "mine.txt").write_text(text)
    assert run(["eval", str(export), "--text", str(tmp_path / "mine.txt")], PYTHON) == 2
    assert words in capsys.readouterr().err
