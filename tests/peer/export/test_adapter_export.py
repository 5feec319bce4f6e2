"""Exports of adapter runs: `peft` loads them, they verify, and base and adapter become one model."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dht.errors import LocalError, UsageError
from dht.identity import KeyVerifier
from dht.statement import Context, make_statement
from peer.cli import main
from peer.data.tally import Loading
from peer.export import sampler as sampler_module
from peer.export.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from peer.export.card import model_card
from peer.export.judging import Judge
from peer.export.listing import CARD, LISTING, STATEMENT_KIND, list_files
from peer.export.merged import ADAPTER_FOLDER, write_merged
from peer.export.sampler import Sampler
from peer.export.source import base_of_export, own_base
from peer.export.verifier import verify_export
from peer.learner.evaluation import FlatModel
from peer.machine.local_files import LocalFiles
from peer.model.description import describe
from peer.model.located import located
from peer.node.options import NodeOptions
from peer.storage.base_place import note_base
from peer.storage.run_directory import RunDirectory
from tests.peer.adapting import adapter_run, write_base
from tests.peer.exporting import KEYS, WRITTEN, CertifiedRun

PYTHON = (3, 11)
TOKENS = torch.arange(24)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def run(base: Path) -> CertifiedRun:
    return CertifiedRun(describe(adapter_run(base)).config).advance(3)


@pytest.fixture(scope="module")
def whole(run: CertifiedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.write(tmp_path_factory.mktemp("exports") / "whole")


@torch.no_grad()
def logits(model: Any) -> Tensor:
    found: Tensor = model.eval()(input_ids=TOKENS, use_cache=False).logits
    return found


def certified(run: CertifiedRun, base: Path) -> Tensor:
    with FlatModel(located(run.config, str(base))).under([state.anchor for state in run.states]) as model:
        return logits(model)


def test_peft_loads_what_the_run_certified(run: CertifiedRun, whole: Path, base: Path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    bare = AutoModelForCausalLM.from_pretrained(base)
    before = logits(bare)
    found = logits(PeftModel.from_pretrained(bare, whole))
    assert torch.equal(found, certified(run, base))
    assert not torch.allclose(found, before, atol=1e-2)


def test_it_proves_itself_without_the_base(run: CertifiedRun, whole: Path):
    found = verify_export(whole, KeyVerifier())
    assert found.from_founders
    assert found.fixes_config
    assert found.parameters == sum(state.anchor.numel() for state in run.states)
    assert not (whole / "config.json").exists()  # beside an adapter it would be taken for the base's


def _scale(folder: Path) -> None:
    said = json.loads((folder / ADAPTER_CONFIG).read_text())
    (folder / ADAPTER_CONFIG).write_text(json.dumps(said | {"lora_alpha": 99.0}))


def _weights(folder: Path) -> None:
    values = load_file(folder / ADAPTER_WEIGHTS)
    name = min(values)
    values[name] = values[name] + 1e-3
    save_file(values, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "sentence"), [(_scale, ADAPTER_CONFIG), (_weights, "not those that its certificate signs")]
)
def test_a_changed_adapter_with_a_list_signed_anew_is_found_out(
    run: CertifiedRun, whole: Path, tmp_path: Path, change: Any, sentence: str
):
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    change(copy)
    (copy / LISTING).unlink()
    context = Context(run_id=run.manifest.run_id, kind=STATEMENT_KIND, fragment=0, version=0, group=b"")
    (copy / LISTING).write_bytes(make_statement(KEYS[1], context, list_files(copy, WRITTEN)).to_wire())
    with pytest.raises(LocalError, match=sentence):
        verify_export(copy, KeyVerifier())


def test_base_and_adapter_become_one_model(
    run: CertifiedRun, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from transformers import AutoModelForCausalLM

    capsys.readouterr()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        write_merged(tmp_path / "model", run.exported(), KEYS[0], WRITTEN, str(base))
    assert capsys.readouterr().err == "", "no bar of transformers"
    assert not warned, "nor what it tells its developers"
    model, told = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(told.values())
    assert torch.allclose(logits(model), certified(run, base), atol=1e-4)
    verify_export(tmp_path / "model" / ADAPTER_FOLDER, KeyVerifier())


def test_no_other_base_is_merged(run: CertifiedRun, tmp_path: Path):
    other = write_base(tmp_path / "other", seed=2)
    with pytest.raises(UsageError, match=r"is not this run's: model\."):
        write_merged(tmp_path / "model", run.exported(), KEYS[0], WRITTEN, str(other))
    assert not (tmp_path / "model").exists()


def test_commands_find_the_base_that_the_peer_of_the_run_has(
    run: CertifiedRun, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    home, whole, text = tmp_path / "home", tmp_path / "whole", tmp_path / "text.txt"
    text.write_text("to be or not to be " * 40)
    directory = RunDirectory(home, run.manifest.run_id)
    directory.keep_manifest(run.manifest)
    directory.commit(directory.stage(run.captured()), None)
    KEYS[1].save(NodeOptions(home).identity_path)
    commands = (
        ("export", str(whole), "--merged"),
        ("sample", str(whole / ADAPTER_FOLDER), "--prompt", "to", "--tokens", "4"),
        ("sample", "--prompt", "to", "--tokens", "4"),
        ("eval", "--text", str(text)),
    )
    assert main.run([*commands[0], "--data", str(home)], PYTHON) == 2
    assert "name the base's folder with --base" in capsys.readouterr().err
    note_base(directory.path, run.config, str(base))
    for command in commands:
        assert main.run([*command, "--data", str(home)], PYTHON) == 0, capsys.readouterr().err
    assert own_base(home, run.manifest, "mine") == base_of_export(whole / ADAPTER_FOLDER, home, "mine") == "mine"
    assert base_of_export(tmp_path, home, "") == ""  # nothing is known of another run's adapter


def test_commands_find_a_public_base_by_its_name(base: Path, tmp_path: Path):
    config = describe(adapter_run(base)).config
    public = CertifiedRun(config.model_copy(update={"model": config.model.model_copy(update={"source": "hub:a/b@c"})}))
    assert own_base(tmp_path, public.manifest, "") == "hub:a/b@c"
    assert own_base(tmp_path, CertifiedRun().manifest, "") == ""


def test_a_run_without_an_adapter_has_nothing_to_merge(tmp_path: Path):
    with pytest.raises(UsageError, match="nothing to merge"):
        write_merged(tmp_path / "model", CertifiedRun().advance(1).exported(), KEYS[0], WRITTEN, "")


def test_the_card_says_of_what_it_is_an_adapter(whole: Path):
    card = (whole / CARD).read_text()
    assert "library_name: peft" in card
    assert "rank 4" in card
    assert "PeftModel.from_pretrained" in card


def test_a_public_base_is_named(base: Path):
    from peer.export.adapter_files import adapter_config

    config = describe(adapter_run(base)).config
    public = config.model_copy(update={"model": config.model.model_copy(update={"source": "hub:some/model@main"})})
    found = adapter_config(public)
    assert (found["base_model_name_or_path"], found["revision"]) == ("some/model", "main")


def test_it_is_judged_and_writes_over_its_base(whole: Path, base: Path, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 40)
    judged = Judge.of_export(whole, "cpu", str(base)).own_text(LocalFiles(str(text)))
    assert judged.loss > 0
    assert len(Sampler.load(whole, str(base)).write("to", 4, 0.0, seed=0)) >= 2
    with pytest.raises(UsageError, match="--base"):
        Sampler.load(whole)
    with pytest.raises(UsageError, match="--base"):
        Judge.of_export(whole, "cpu")


def test_a_model_of_conversations_is_exported_with_its_template_and_answers_until_it_has_said_all(
    tmp_path: Path, base: Path
) -> None:
    lines = "".join(json.dumps({"prompt": f"{n}?", "completion": f"{n}!"}) + "\n" for n in range(200))
    (tmp_path / "chat.jsonl").write_text(lines)
    template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    config = adapter_run(base)
    said = {"source": "chat", "path": str(tmp_path / "chat.jsonl"), "chat_template": template, "context_tokens": 48}
    described = describe(config.model_copy(update={"data": config.data.model_copy(update=said)}))
    run = CertifiedRun(described.config).advance(1)
    folder = run.write(tmp_path / "export")
    assert verify_export(folder, KeyVerifier()).from_founders
    sampler = Sampler.load(folder, str(base))
    assert sampler.tokenizer is not None
    assert sampler.tokenizer.chat_template == template
    written: list[list[int]] = []

    def scripted(model: Any, given: list[int], *_: Any) -> Any:
        written.append(given)
        return iter(b"Hello you\nand more")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler_module, "following_tokens", scripted)
        assert sampler.answer("Who?", 40, 0, 0) == "Hello you"
    assert bytes(written[0]) == b"<user>Who?\n<assistant>"
    assert len(sampler.answer("Who?", 5, 0, 0).encode()) <= 15
    judge, files = Judge.of_export(folder, "cpu", str(base)), LocalFiles(str(tmp_path / "chat.jsonl"))
    judged = judge.run_text(files, Loading())
    assert 3 < judged.loss < 8
    own = judge.own_text(files)
    assert own.tokens == sum(len(f"{n}!\n") for n in range(200))
    with pytest.raises(UsageError, match="no chat template; leave out --chat"):
        Sampler.load(run_folder_without_chat(tmp_path, base), str(base)).answer("Who?", 5, 0, 0)


def run_folder_without_chat(tmp_path: Path, base: Path) -> Path:
    return CertifiedRun(describe(adapter_run(base)).config).advance(1).write(tmp_path / "text")


def test_the_card_names_base_licence_data_and_contributors(base: Path):
    config = describe(adapter_run(base)).config
    public = config.model_copy(
        update={
            "model": config.model.model_copy(update={"source": "hub:some/model@main"}),
            "data": config.data.model_copy(update={"source": "chat"}),
        }
    )
    run = CertifiedRun(public).advance(1)
    card = model_card(run.exported("CC0-1.0"))
    head = card.split("---\n")[1].splitlines()
    assert "base_model: some/model" in head
    assert "library_name: peft" in head
    assert "`some/model@main` of the Hugging Face Hub, a base of" in card
    assert "| trained on | conversations in files, of which every peer brought its own" in card
    assert "| licence | CC0-1.0 |" in card
    assert f"| contributors | {len(run.credit().contributors)} |" in card
    own = model_card(CertifiedRun(config).advance(1).exported())
    assert "base_model" not in own
    assert "for a llama that every peer brought, a base of" in own
