"""A run over the user's own text, by commands: host, two joins, export, verify, and loading with `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coordinator.run.model_spec import ModelSpec
from dht.identity import KeyVerifier
from peer.cli import main
from peer.export.listing import LATEST, WEIGHTS
from peer.export.verifier import verify_export
from peer.model.families import make_module
from peer.storage.tokenizer_file import TOKENIZER_FILE
from tests.checkout import ROOT
from tests.peer.matrix.materials import VOCABULARY, model_keys, write_corpus, write_tokenizer
from tests.peer.matrix.test_run_files import CUT
from tests.real.conftest import Machines, invite_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(500)]

PYTHON = (3, 11)
VERSIONS = 12  # of four fragments: with fewer, one may have none when the run ends
PACED = ("--step-seconds", "0.05")  # a round that lasts longer than all steps between two may leave one behind, too
CONTEXT = 32
ENDING_SECONDS_MAX = 300.0
LEARNERS = ("ann", "bob")


def run_over_text(folder: Path, base: str) -> str:
    """Return the small run's file with given weights of a Qwen 2, text files and a BPE tokenizer."""
    torch.manual_seed(5)
    spec = ModelSpec.model_validate(model_keys("qwen2") | {"vocabulary": VOCABULARY})
    make_module(spec, CONTEXT).save_pretrained(folder / "given")
    head, rest = base.split("[model]\n")
    model, data = rest.split("[data]\n")
    assert model.strip()
    lines = [
        '[model]\nsource = "' + str(folder / "given") + '"\n[data]\nsource = "text"\n',
        f'path = "{write_corpus(folder, "text", 400)}"\ntokenizer = "{write_tokenizer(folder)}"\n',
    ]
    return head + "".join(lines) + data.replace("[pace]\n", "[pace]\nquorum = 2\n").replace("= 4.0", "= 20.0")


def exported(machines: Machines, run: Path, *settings: str) -> Path:
    """Run a host and two learners with the same files to the end of this run; returns the folder of exports."""
    exports = machines.folder / "exports"
    host = machines.peer("host", "host", str(run), "--export", str(exports), *settings)
    machines.wait(host, lambda now: now.state == "hosting")
    invite, folder = invite_of(host), run.parent
    files = ["--corpus", str(folder / "corpus.text"), "--tokenizer", str(folder / "tokenizer.json")]
    for name in LEARNERS:
        machines.peer(name, "join", invite, "--yes", *PACED, *files)
    for name in ("host", *LEARNERS):  # each ends by itself when the run is over
        assert machines.processes[name].wait(ENDING_SECONDS_MAX) == 0, machines.said(name)
    found = verify_export(exports / LATEST, KeyVerifier())
    assert sum(one.version for one in found.fragments) >= VERSIONS
    assert found.fixes_config
    return exports


def test_a_host_over_text_exports_what_its_learners_certify(machines: Machines, tmp_path: Path) -> None:
    """Before, the host died at its first export: the model card knew only the standard library."""
    machines.run = run_over_text(tmp_path, machines.run.replace("= 100000\n", f"= {VERSIONS}\n"))
    (tmp_path / "run.toml").write_text(machines.run)
    exports = exported(machines, tmp_path / "run.toml")

    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded: Any = AutoModelForCausalLM.from_pretrained(exports / LATEST)
    weights = load_file(exports / LATEST / WEIGHTS)
    assert all(torch.equal(value, weights[name]) for name, value in loaded.named_parameters())
    tokenizer = AutoTokenizer.from_pretrained(exports / LATEST)
    written = loaded.generate(**tokenizer("The river", return_tensors="pt"), max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(written[0]).startswith("The river")
    (tmp_path / "tokenizer.json").unlink()  # a learner has kept the run's tokenizer
    ann = machines.folder / LEARNERS[0]
    assert main.run(["export", str(tmp_path / "from-ann"), "--data", str(ann)], PYTHON) == 0
    assert main.run(["verify", str(tmp_path / "from-ann"), "--strict"], PYTHON) == 0
    assert (tmp_path / "from-ann" / TOKENIZER_FILE).read_bytes() == (exports / LATEST / TOKENIZER_FILE).read_bytes()


@pytest.mark.parametrize("name", ["gpt2-124m", "continue"])
def test_a_shipped_run_file_goes_to_its_export_with_sizes_cut_by_flags(
    machines: Machines, tmp_path: Path, name: str
) -> None:
    corpus, tokenizer = write_corpus(tmp_path, "text", 400), write_tokenizer(tmp_path)
    small: dict[str, object] = {
        "model.hidden_size": 16,
        "model.layers": 2,
        "model.heads": 2,
        "model.vocabulary": VOCABULARY,
    }
    if name == "continue":
        torch.manual_seed(5)
        spec = ModelSpec(family="gpt2", hidden_size=16, layers=2, heads=2, vocabulary=VOCABULARY)
        make_module(spec, CONTEXT).save_pretrained(tmp_path / "given")
        small = {"model.source": tmp_path / "given"}
    paced: dict[str, object] = {
        "versions": VERSIONS,
        "pace.quorum": 2,
        "pace.steps_per_version": 24,
        "pace.presence_seconds": 1,
        "pace.presence_lifetime_seconds": 3,
    }
    own: dict[str, object] = {"data.path": corpus, "data.tokenizer": tokenizer, "pace.round_seconds": 20}
    settings = {**CUT, **small, **paced, **own}
    (tmp_path / "run.toml").write_text((ROOT / "examples" / f"{name}.toml").read_text())
    cut = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    exports = exported(machines, tmp_path / "run.toml", *cut)
    assert main.run(["eval", str(exports / LATEST), "--corpus", corpus], PYTHON) == 0
