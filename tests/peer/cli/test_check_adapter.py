"""`muster check` and `muster plan swarm` of an adapter whose base is only planned: its config is enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.views import quantity
from dht.errors import UsageError
from peer.cli import main, terms
from peer.cli.check import check
from peer.machine.local_files import LocalFiles
from peer.model.description import describe
from peer.node.options import NodeOptions
from peer.plan.swarm_plan import PlanFile
from tests.peer.adapting import adapter_run, write_base
from tests.peer.homely import manifest

PYTHON = (3, 11)
EIGHT_BILLION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
RUN = """
name = "eight"
[model]
source = "{base}"
[adapter]
rank = 16
[data]
context_tokens = 1024
[inner]
optimizer = "adamw8bit"
"""
# q and o: 4096 to 4096; k and v: to 1024; gate and up: to 14336; down: back
ADAPTER = 32 * 16 * (2 * 2 * 4096 + 2 * (4096 + 1024) + 3 * (4096 + 14336))


def written(folder: Path) -> Path:
    (folder / "base").mkdir()
    (folder / "base" / "config.json").write_text(json.dumps(EIGHT_BILLION))
    (folder / "run.toml").write_text(RUN.format(base=folder / "base"))
    return folder / "run.toml"


def test_a_run_over_a_base_that_is_not_here_yet_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", str(written(tmp_path)), "--step-seconds", "20"], PYTHON) == 0
    said = capsys.readouterr().out
    assert "8.0G parameters, 5.3 GB in nf4; every peer brings it, and nobody sends it" in said
    assert "llama, 42M parameters" in said
    assert "has only its config.json: bring its weights before muster host" in said
    assert "a version of each fragment every 24 steps, about 8 min" in said


def test_a_plan_counts_the_base_of_an_adapter(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "plan.toml").write_text('run = "run.toml"\n[swarm]\npeers = 8\nstep_seconds = 20\nup_mbit = 20\n')
    work = PlanFile.load(tmp_path / "plan.toml").workload(tmp_path / "plan.toml")
    assert work.parameters == ADAPTER
    assert work.base_bytes == pytest.approx(5.3e9, rel=0.1)


def test_a_folder_without_a_config_is_no_base(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN.format(base=tmp_path))
    with pytest.raises(UsageError, match="holds no weights"):
        check(tmp_path / "run.toml", step_seconds=1.0)


def test_check_and_join_say_what_a_base_that_is_given_takes_to_fetch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_base(tmp_path / "base", inner=2048)
    (tmp_path / "run.toml").write_text(
        RUN.format(base=base).replace("1024", "32").replace("rank = 16", "rank = 4\ngive_base = true")
    )
    assert main.run(["check", str(tmp_path / "run.toml")], PYTHON) == 0
    size = quantity.size((base / "model.safetensors").stat().st_size)
    assert f"peers without a copy get it from the others, {size} once" in capsys.readouterr().out

    config = describe(adapter_run(base, give_base=True)).config
    file = config.adapter and config.adapter.base_file
    assert file is not None
    machine = terms.Machine(1 << 33, 1 << 35, 1e10)
    fetching, bringing = NodeOptions(tmp_path), NodeOptions(tmp_path, files=LocalFiles(base=str(base)))
    said = terms.describe(manifest(config), fetching, machine)
    assert f"from peers of the run, {size}, unless you name a copy with --base" in said
    assert terms.disk_bytes(config) - terms.disk_bytes(config, str(base)) == file.size_bytes
    needed = quantity.size(terms.disk_bytes(config, str(base)))
    assert f"{needed} in {tmp_path}" in terms.describe(
        manifest(config), bringing, terms.Machine(1 << 33, 1 << 35, 1e10)
    )
