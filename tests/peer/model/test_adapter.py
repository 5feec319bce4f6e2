"""Runs that train an adapter: the manifest, the check of the base, and the model that a machine builds."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from coordinator.run.adapter_spec import AdapterSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import TENSORS_MAX
from coordinator.views import quantity
from dht.errors import UsageError
from peer.cli import terms
from peer.learner.evaluation import FlatModel
from peer.learner.learner import Learner, make_learner, parameters_of
from peer.learner.memory_estimate import footprint
from peer.model.adapter import build_run_model
from peer.model.build import initial_parameters, loss, parameter_specs
from peer.model.description import describe
from peer.model.located import located, unlocated
from peer.model.own_module import named_values
from peer.model.sketch import with_shapes
from peer.storage.anchors import genesis_states
from tests.peer.adapting import CONTEXT, adapter_run, write_base

TOKENS = torch.arange(2 * (CONTEXT + 1)).view(2, CONTEXT + 1) % 256


class Same:
    """Batches that repeat one window."""

    def batch(self, window: int) -> Tensor:
        return TOKENS


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("models") / "base")


def learner_of(run: RunConfig, base: Path) -> Learner:
    return make_learner(located(describe(run).config, str(base)), Same())


def test_the_run_is_the_adapter(base: Path):
    described = describe(adapter_run(base))
    run = RunConfig.from_wire(described.config.to_wire())
    assert run == described.config
    assert run.model.source == ""
    assert described.values is None
    assert described.files.base == str(base)
    assert {one.name.rpartition(".lora_")[0].rpartition(".")[2] for one in parameter_specs(run.model)} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert sum(one.elements for one in parameter_specs(run.model)) < run.adapter.base_elements / 4


def test_every_peer_starts_with_the_same_a_and_with_the_base_alone(base: Path):
    run = describe(adapter_run(base)).config
    values = initial_parameters(run.model, run.seed)
    built = named_values(build_run_model(located(run, str(base))))
    assert values.keys() == built.keys()
    for name, value in values.items():
        assert torch.equal(built[name], value)
        if "lora_B" in name:
            assert not value.any()
        else:
            assert 0.5 < float(value.abs().max()) * math.sqrt(value.shape[1]) <= 1
    assert len(genesis_states(run, None)) == run.pace.fragments


def test_a_run_without_a_named_base_does_not_begin():
    with pytest.raises(UsageError, match="--base"):
        describe(adapter_run(""))


def test_a_manifest_names_no_folder_of_ours(base: Path):
    forged = describe(adapter_run(base)).config
    forged = forged.model_copy(update={"model": forged.model.model_copy(update={"source": "/etc"})})
    assert located(forged, "").model.source == ""
    with pytest.raises(UsageError, match="--base"):
        build_run_model(located(forged, ""))
    assert unlocated(located(forged, str(base))).model.source == ""


def altered(base: Path, folder: Path, change: Any) -> Path:
    shutil.copytree(base, folder)
    values = load_file(folder / "model.safetensors")
    change(values)
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _nudge(values: dict[str, Tensor]) -> None:
    values["model.layers.1.mlp.up_proj.weight"][3, 5] += 1e-6
    values["model.norm.weight"][0] += 1e-6


def _shorten(values: dict[str, Tensor]) -> None:
    values["model.layers.0.mlp.down_proj.weight"] = values["model.layers.0.mlp.down_proj.weight"].bfloat16()


def _lose(values: dict[str, Tensor]) -> None:
    del values["model.norm.weight"]


def _add(values: dict[str, Tensor]) -> None:
    values["extra"] = torch.zeros(2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_nudge, "model.layers.1.mlp.up_proj.weight has other values"),
        (_shorten, "model.layers.0.mlp.down_proj.weight has other values, or another type"),
        (_lose, "model.norm.weight is missing"),
        (_add, "extra is none of the run's"),
    ],
)
def test_another_base_is_refused_by_the_first_tensor_that_differs(
    base: Path, tmp_path: Path, change: Any, sentence: str
):
    run = describe(adapter_run(base)).config
    with pytest.raises(UsageError, match=sentence):
        build_run_model(located(run, str(altered(base, tmp_path / "other", change))))


def test_a_base_in_several_files_is_the_same_base(base: Path, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    pieces = tmp_path / "pieces"
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(pieces, max_shard_size="100KB")
    assert len(list(pieces.glob("*.safetensors"))) > 1
    assert describe(adapter_run(pieces)).config == describe(adapter_run(base)).config


def test_a_base_of_more_tensors_than_a_manifest_names_is_refused(base: Path, tmp_path: Path) -> None:
    def add(values: dict[str, Tensor]) -> None:
        values |= {f"extra.{number}": torch.zeros(1) for number in range(TENSORS_MAX)}

    many = altered(base, tmp_path / "many", add)
    with pytest.raises(UsageError, match=r"has 4,1\d\d tensors, and a manifest names 4,096 at most; choose a base"):
        describe(adapter_run(many))


def test_a_family_that_keeps_matrices_transposed_gets_an_adapter(tmp_path: Path):
    base = write_base(tmp_path / "gpt2", family="gpt2")
    learner = learner_of(adapter_run(base, targets=["c_attn", "c_fc"]), base)
    first = [learner.step().loss for _ in range(8)]
    assert first[-1] < first[0]


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [("nothing_of_that_name", "adapter.targets"), (["embed_tokens"], "not linear"), (["input_layernorm"], "targets")],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_a_target_that_cannot_have_an_adapter_is_named(base: Path, targets: Any, sentence: str):
    with pytest.raises(UsageError, match=sentence):
        describe(adapter_run(base, targets=targets))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "nf4"])
def test_only_the_adapter_learns(base: Path, precision: str):
    learner = learner_of(adapter_run(base, base_precision=precision), base)
    frozen = {name: one.clone() for name, one in learner.model.named_parameters() if not one.requires_grad}
    start = torch.cat(parameters_of(learner))
    losses = [learner.step().loss for _ in range(12)]
    assert losses[-1] < losses[0]
    assert not torch.equal(torch.cat(parameters_of(learner)), start)
    assert all(torch.equal(one, frozen[name]) for name, one in learner.model.named_parameters() if name in frozen)
    assert learner.export_state()["theta"].dtype == torch.float32


def test_an_adapter_of_the_head_alone_learns(tmp_path: Path):
    """Nothing before the head takes a gradient then, and the first step failed."""
    base = write_base(tmp_path / "base", family="phi")  # its head is not tied to the embeddings
    learner = learner_of(adapter_run(base, targets=("lm_head",)), base)
    losses = [learner.step().loss for _ in range(12)]
    assert losses[-1] < losses[0]


def test_a_run_may_leave_the_base_s_precision_to_owners(base: Path):
    run = describe(adapter_run(base, base_precision="any")).config
    assert run.adapter is not None
    held = {}
    for owner in ("", "nf4", "bfloat16", "float32"):
        here = located(run, str(base), owner)
        module = build_run_model(here)
        held[owner] = sum(one.numel() * one.element_size() for one in module.parameters() if not one.requires_grad)
        assert held[owner] == pytest.approx(here.adapter.base_bytes, rel=0.05)  # type: ignore[union-attr]
        assert {name for name, one in module.named_parameters() if one.requires_grad} == {
            one.name for one in run.model.tensors
        }
    assert held[""] == held["nf4"] < held["bfloat16"] < held["float32"]
    with pytest.raises(UsageError, match="'int3' is none of them"):
        located(run, str(base), "int3")
    fixed = describe(adapter_run(base, base_precision="nf4")).config
    assert located(fixed, str(base), "nf4") == located(fixed, str(base))
    with pytest.raises(UsageError, match="holds its base in nf4 everywhere; leave out --base-precision"):
        located(fixed, str(base), "float32")


def test_nf4_starts_near_the_base_and_takes_a_fifth_of_its_memory(base: Path):
    full, short = (describe(adapter_run(base, base_precision=one)).config for one in ("float32", "nf4"))
    values = [loss(build_run_model(located(run, str(base))).train(), TOKENS).item() for run in (full, short)]
    assert values[1] == pytest.approx(values[0], rel=0.02)
    built = build_run_model(located(short, str(base)))
    held = sum(one.numel() * one.element_size() for one in built.parameters() if not one.requires_grad)
    assert held == pytest.approx(short.adapter.base_bytes, rel=0.05)


def test_nf4_evaluates_with_what_it_trains_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before, hosts died if rows were no whole number of blocks, on processors where bitsandbytes repacks them."""
    import bitsandbytes.nn.modules

    monkeypatch.setattr(bitsandbytes.nn.modules, "has_avx512bf16", lambda: True)
    base = write_base(tmp_path / "base", inner=96)
    run = located(describe(adapter_run(base, base_precision="nf4")).config, str(base))
    evaluated = FlatModel(run)
    anchors = [state.anchor for state in genesis_states(run, None)]
    with evaluated.under(anchors) as model, torch.inference_mode():
        assert loss(model, TOKENS).item() == loss(build_run_model(run).train(), TOKENS).item()


def test_evaluation_sees_the_adapter_exactly(base: Path):
    """A base in bfloat16 does not round the certified float32 values."""
    run = located(describe(adapter_run(base, base_precision="bfloat16")).config, str(base))
    flat = FlatModel(run)
    anchors = [torch.full((layout.elements,), 1 + 2**-20) for layout in flat.fragments]
    with flat.under(anchors) as model:
        assert all(bool((value == 1 + 2**-20).all()) for value in named_values(model).values())


def test_shapes_alone_say_what_the_run_takes(base: Path):
    run, sketched = describe(adapter_run(base, base_precision="nf4")).config, with_shapes(adapter_run(base))
    assert parameter_specs(run.model) == parameter_specs(sketched.model)
    assert sketched.adapter.base_elements == run.adapter.base_elements
    assert any(one.size_bytes == run.adapter.base_bytes and "nf4" in one.what for one in footprint(run).needs)


def test_the_owner_is_told_what_base_to_bring(base: Path):
    run = describe(adapter_run(base)).config
    said = terms._base_row(run)[0][1]
    assert "--base" in said
    assert quantity.size(run.adapter.base_bytes) in said
    assert terms.step_seconds_at(run, 1e9) > terms.step_seconds_at(run.model_copy(update={"adapter": None}), 1e9)


def test_the_estimate_of_nf4_counts_scales():
    spec = AdapterSpec(base_elements=8_000_000_000, linear_elements=7_000_000_000, base_precision="nf4")
    assert 5.6e9 < spec.base_bytes < 5.65e9
