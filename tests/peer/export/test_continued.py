"""A run that continues an export: what it takes over, and which exports cannot be continued."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, processors

from coordinator.run.data_spec import NO_TOKEN
from dht.errors import LocalError, UsageError
from peer.cli import arguments, main
from peer.data.tokens import encoder
from peer.export.continued import continued
from peer.export.listing import WEIGHTS
from peer.model.build import parameter_specs
from peer.model.description import describe, own_model
from tests.peer.exporting import CONFIG, CertifiedRun, buffered_run

PYTHON = (3, 11)


@pytest.fixture
def run() -> CertifiedRun:
    return CertifiedRun().advance(3)


@pytest.fixture
def export(run: CertifiedRun, tmp_path: Path) -> Path:
    return run.write(tmp_path / "export")


def test_the_next_run_has_the_weights_and_the_keys_of_the_last(run: CertifiedRun, export: Path) -> None:
    begun = arguments.hosted_run(None, export, 200, ["pace.steps_per_version=9"])
    assert begun.versions == 200
    assert begun.pace == CONFIG.pace.model_copy(update={"steps_per_version": 9})
    assert (begun.name, begun.seed, begun.data, begun.inner) == (CONFIG.name, CONFIG.seed, CONFIG.data, CONFIG.inner)
    found = describe(begun)
    assert found.values is not None
    assert found.config.model.weights == "given"
    assert [(one.name, one.shape) for one in parameter_specs(found.config.model)] == [
        (one.name, one.shape) for one in parameter_specs(CONFIG.model)
    ]
    stored = load_file(export / WEIGHTS)
    assert all(torch.equal(value, stored[name]) for name, value in found.values.items())


@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_model_with_buffers_goes_on_from_new_and_earlier_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_earlier: bool
) -> None:
    """Earlier exports lack the buffers, and were refused as not whole."""
    if is_earlier:
        monkeypatch.setattr("peer.export.writer.run_buffers", lambda *_: {})
    run = buffered_run()
    export = run.write(tmp_path / "export")
    stored, found = load_file(export / WEIGHTS), describe(continued(export))
    parameters = {one.name for one in parameter_specs(run.config.model)}
    assert (stored.keys() == parameters) == is_earlier
    assert found.values is not None
    assert found.values.keys() == parameters
    assert all(torch.equal(value, stored[name]) for name, value in found.values.items())


def test_a_run_over_files_needs_them_again_and_brings_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = b'{"added_tokens": []}'
    digest = hashlib.sha256(tokenizer).hexdigest()
    data = CONFIG.data.model_copy(update={"source": "text", "tokenizer_sha256": digest})
    run = CertifiedRun(CONFIG.model_copy(update={"data": data}), tokenizer=tokenizer).advance(2)
    begun = arguments.hosted_run(None, run.write(tmp_path / "export"), None, None)
    assert Path(begun.data.tokenizer).read_bytes() == tokenizer
    with pytest.raises(UsageError, match=r"with `muster host --continue` say --set data\.path=PATH"):
        describe(begun)


def tokenizer() -> bytes:
    """Return a tokenizer of words that puts a token before every text, and has one for the end."""
    made = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "cat": 3}, unk_token="<unk>"))
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made.to_str().encode()


@pytest.mark.parametrize(
    ("said", "around"),
    [
        ({"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}, (1, 2)),
        ({"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"}, (NO_TOKEN, 2)),
        ({"add_bos_token": False, "eos_token": None}, (NO_TOKEN, NO_TOKEN)),
    ],
)
def test_the_next_run_has_the_tokens_of_the_last_around_documents(
    tmp_path: Path, said: dict[str, object], around: tuple[int, int]
) -> None:
    """Before, the tokenizer of the export brought a token that the first run had not."""
    content, files = tokenizer(), tmp_path / "files"
    files.mkdir()
    (files / "tokenizer.json").write_bytes(content)
    (files / "tokenizer_config.json").write_text(json.dumps(said))
    data = CONFIG.data.model_copy(update={"source": "text", "path": "x.txt"})
    data = data.model_copy(update={"tokenizer": str(files / "tokenizer.json")})
    first = describe(CONFIG.model_copy(update={"data": data})).config
    run = CertifiedRun(first, tokenizer=content).advance(2)
    begun = continued(run.write(tmp_path / "export"))
    second = describe(begun.model_copy(update={"data": begun.data.model_copy(update={"path": "x.txt"})})).config.data
    one, two = (encoder(content, 256, spec) for spec in (first.data, second))
    assert (one.begin, one.end) == (two.begin, two.end)
    assert (second.begin_token, second.end_token) == around


def test_a_tokenizer_of_the_hub_stays_on_the_hub(tmp_path: Path) -> None:
    """Before, the next manifest named none, and every volunteer had to bring the file."""
    content = tokenizer()
    update = {"source": "text", "tokenizer": "hub:some/model", "tokenizer_sha256": hashlib.sha256(content).hexdigest()}
    config = CONFIG.model_copy(update={"data": CONFIG.data.model_copy(update=update)})
    export = CertifiedRun(config, tokenizer=content).advance(2).write(tmp_path / "export")
    assert continued(export).data.tokenizer == "hub:some/model"


def test_an_export_that_was_changed_since_is_not_continued(export: Path) -> None:
    *rest, last = (export / WEIGHTS).read_bytes()
    (export / WEIGHTS).write_bytes(bytes([*rest, last ^ 1]))
    with pytest.raises(LocalError, match="does not verify"):
        arguments.hosted_run(None, export, None, None)


def test_a_run_file_and_an_export_are_not_both_begun_from(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["host", "run.toml", "--continue", str(export)], PYTHON) == 2
    assert "give a run file, or an export with --continue" in capsys.readouterr().err
    assert main.run(["host", "--continue", str(export.parent)], PYTHON) == 2
    assert "is no export of Muster" in capsys.readouterr().err


def test_a_model_that_only_its_peers_can_build_is_refused(tmp_path: Path) -> None:
    described = own_model(CONFIG, torch.nn.Linear(4, 2))
    export = CertifiedRun(described.config, described.values).advance(2).write(tmp_path / "export")
    with pytest.raises(UsageError, match="is of a model that its peers brought"):
        arguments.hosted_run(None, export, None, None)
