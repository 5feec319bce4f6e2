"""A run over text of one's own, by the commands: host, two joins, export, verify, and what `transformers` loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coordinator.run.model_spec import ModelSpec
from dht.identity import KeyVerifier
from peer.cli import main
from peer.export.listing import WEIGHTS
from peer.export.regular import LATEST
from peer.export.verifier import verify_export
from peer.model.families import make_module
from peer.storage.tokenizer_file import TOKENIZER_FILE
from tests.peer.matrix.materials import VOCABULARY, model_keys, write_corpus, write_tokenizer
from tests.real.conftest import Machines, invite_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(500)]

PYTHON = (3, 11)
VERSIONS = 6
CONTEXT = 32
ENDING_SECONDS_MAX = 150.0


def run_over_text(folder: Path, base: str) -> str:
    """The small run with given weights of a Qwen 2, text files and a BPE tokenizer."""
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


def test_a_host_over_text_exports_what_its_learners_certify(machines: Machines, tmp_path: Path) -> None:
    """The host died at its first export: the model card knew the standard library only."""
    machines.run = run_over_text(tmp_path, machines.run.replace("= 100000\n", f"= {VERSIONS}\n"))
    exports = tmp_path / "exports"
    (machines.folder / "run.toml").write_text(machines.run)
    host = machines.peer("host", "host", str(machines.folder / "run.toml"), "--export", str(exports))
    machines.wait(host, lambda now: now.state == "hosting")
    invite, files = invite_of(host), ["--corpus", str(tmp_path / "corpus.text")]
    joined = ["join", invite, "--yes", *files, "--tokenizer", str(tmp_path / "tokenizer.json")]
    learners = [machines.peer(name, *joined) for name in ("ann", "bob")]
    for name in ("host", "ann", "bob"):  # each ends by itself when the run is over
        assert machines.processes[name].wait(ENDING_SECONDS_MAX) == 0, machines.said(name)
    found = verify_export(exports / LATEST, KeyVerifier())
    assert sum(one.version for one in found.fragments) >= VERSIONS
    assert found.fixes_config

    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded: Any = AutoModelForCausalLM.from_pretrained(exports / LATEST)
    weights = load_file(exports / LATEST / WEIGHTS)
    assert all(torch.equal(value, weights[name]) for name, value in loaded.named_parameters())
    tokenizer = AutoTokenizer.from_pretrained(exports / LATEST)
    written = loaded.generate(**tokenizer("The river", return_tensors="pt"), max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(written[0]).startswith("The river")
    (tmp_path / "tokenizer.json").unlink()  # a learner has kept the run's
    ann = learners[0]
    assert main.run(["export", str(tmp_path / "from-ann"), "--data", str(ann)], PYTHON) == 0
    assert main.run(["verify", str(tmp_path / "from-ann"), "--strict"], PYTHON) == 0
    assert (tmp_path / "from-ann" / TOKENIZER_FILE).read_bytes() == (exports / LATEST / TOKENIZER_FILE).read_bytes()
