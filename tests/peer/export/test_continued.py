"""A run that continues an export: what it takes over, and which exports cannot be continued."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dht.errors import LocalError, UsageError
from peer.cli import arguments, main
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
