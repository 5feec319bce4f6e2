"""Models of other families: the organiser's settings, the manifest, and the model that a machine builds from it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.export.model_files import encoded, model_files
from peer.model.build import build_model, initial_parameters, loss, parameter_specs
from peer.model.description import describe
from peer.model.families import make_module
from peer.numerics.fragments import gather
from peer.storage.anchors import genesis_states, layouts_of
from tests.peer.exporting import logits_of

SMALL: dict[str, Any] = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 24, "vocabulary": 64}
DATA = DataSpec(context_tokens=16, sequences_per_step=2, evaluation_tokens=256)


def run_of(**model: Any) -> RunConfig:
    return RunConfig(model=ModelSpec.model_validate(SMALL | model), data=DATA)


def test_a_plain_llama_needs_no_description():
    config = RunConfig()
    assert describe(config).config is config
    assert config.model.is_plain_llama


@pytest.mark.parametrize("family", ["gpt2", "qwen2", "gpt_neox", "opt", "mixtral"])
def test_a_family_is_named_and_trains(family: str):
    described = describe(run_of(family=family))
    spec = described.config.model
    assert described.values is None
    model = build_model(spec, 16, seed=3)
    assert {one.name: one.shape for one in parameter_specs(spec)} == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }
    assert any(one.embedding for one in parameter_specs(spec))
    value = loss(model, torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(1)))
    value.backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "expert" not in name)


def test_the_manifest_says_all_that_averaging_needs():
    """Names, shapes and seeded values come from its bytes, so a peer that only averages imports no transformers."""
    spec = describe(run_of(family="gpt2")).config.model
    read = ModelSpec.from_wire(spec.to_wire())
    assert read == spec
    values = initial_parameters(read, seed=5)
    assert torch.equal(values["transformer.h.0.ln_1.weight"], torch.ones(16))
    assert torch.equal(values["transformer.h.0.attn.c_attn.bias"], torch.zeros(48))
    assert 0 < values["transformer.wte.weight"].abs().max() <= 1 / 4
    model = build_model(read, 16, seed=5)
    assert all(torch.equal(parameter, values[name]) for name, parameter in model.named_parameters())


def test_bounds_know_matrices_that_are_kept_transposed():
    """GPT-2 has (inputs, outputs) where all others have (outputs, inputs); two layers write into the stream."""
    config = run_of(family="gpt2", initial="depth")
    bounds = {one.name.partition("h.0.")[2]: one.bound for one in parameter_specs(describe(config).config.model)}
    assert bounds["attn.c_attn.weight"] == bounds["mlp.c_fc.weight"] == 1 / 4
    assert bounds["attn.c_proj.weight"] == pytest.approx(1 / math.sqrt(16 * 2))
    assert bounds["mlp.c_proj.weight"] == pytest.approx(1 / math.sqrt(64 * 2))
    assert bounds["ln_1.weight"] is None
    assert {one.bound for one in parameter_specs(describe(run_of(family="gpt2")).config.model)} == {None}


def test_tied_tensors_are_listed_once():
    names = [one.name for one in parameter_specs(describe(run_of(family="gpt2")).config.model)]
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names
    untied = describe(run_of(family="gpt_neox")).config.model
    assert {one.name for one in parameter_specs(untied) if one.embedding} == {
        "gpt_neox.embed_in.weight",
        "lm_head.weight",
    }


def test_a_tensor_larger_than_its_share_has_a_fragment_of_its_own():
    described = describe(run_of(family="gpt_neox", vocabulary=4096)).config
    layouts = layouts_of(described)
    assert len(layouts) == described.pace.fragments
    large = [[tensor.name for tensor in layout.tensors] for layout in layouts if layout.elements > 4096 * 16 - 1]
    assert sorted(large) == [["gpt_neox.embed_in.weight"], ["lm_head.weight"]]


def test_settings_go_before_the_common_keys():
    text = '[model]\nfamily = "gpt2"\nhidden_size = 32\nheads = 2\n[model.settings]\nn_layer = 3\nn_inner = 40\n'
    spec = describe(RunConfig.parse(text, "run.toml")).config.model
    shapes = {one.name: one.shape for one in parameter_specs(spec)}
    assert shapes["transformer.h.2.mlp.c_fc.weight"] == (32, 40)
    assert spec.layers == 3


def test_dropout_is_off():
    model = make_module(describe(run_of(family="gpt2")).config.model, 16)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"family": "gtp2"}, r"no causal language model 'gtp2' \(did you mean gpt2\?\)"),
        ({"family": "gpt2", "settings": {"n_layers": 2}}, "has no n_layers"),
        ({"family": "qwen2", "settings": {"num_hidden_layers": 50_000_000}}, "num_hidden_layers is at most 256"),
        ({"family": "gpt2", "settings": {"n_layer": 257}}, "n_layer is at most 256, not 257"),
        ({"family": "gpt2", "settings": {"num_labels": 100_000_000}}, "must not hold num_labels"),
        ({"family": "gpt2", "settings": {"n_inner": 10**40}}, "n_inner is at most 16777216, not a number of more"),
        ({"family": "gemma3", "settings": {"text_config": {"num_hidden_layers": 10**7}}}, "num_hidden_layers is at"),
        ({"family": "gemma3", "settings": {"text_config": {"id2label": {}}}}, "must not hold id2label"),
        ({"family": "xlstm", "settings": {"num_blocks": 10**7}}, "num_blocks is at most 256"),
        ({"family": "gpt2", "settings": {"task_specific_params": [[{"n_layer": 300}]]}}, "n_layer is at most 256"),
        ({"family": "gpt2", "settings": {"auto_map": {"AutoModel": "x.py"}}}, "must not hold auto_map"),
        ({"family": "gpt2", "settings": {"_attn_implementation": "some/kernel"}}, "must not hold _attn"),
        ({"family": "gpt2", "settings": {"task_specific_params": {"quantization_config": {}}}}, "must not hold quant"),
        ({"family": "gpt2", "hidden_size": 17}, "builds no gpt2"),
        ({"family": "mamba", "settings": {"state_size": 4}}, 'write weights = "given"'),
        ({"source": "./nowhere"}, "there is no folder"),
    ],
)
def test_a_model_that_cannot_be_built_is_one_sentence(model: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words) as caught:
        describe(run_of(**model))
    assert "\n" not in str(caught.value)


def test_a_folder_gives_config_and_weights(tmp_path: Path):
    """A run starts from what `save_pretrained` wrote, also on machines without that folder."""
    original = make_module(ModelSpec.model_validate(SMALL | {"family": "gpt2"}), 16)
    original.save_pretrained(tmp_path)
    described = describe(run_of(source=str(tmp_path)))
    spec = described.config.model
    assert (spec.family, spec.weights, spec.source, spec.hidden_size) == ("gpt2", "given", "", 16)
    assert described.values is not None
    assert all(torch.equal(described.values[name], one.detach()) for name, one in original.named_parameters())
    anchors = genesis_states(described.config, described.values)
    for layout, state in zip(layouts_of(described.config), anchors, strict=True):
        assert torch.equal(state.anchor, gather(layout, dict(original.named_parameters())))
    build_model(ModelSpec.from_wire(spec.to_wire()), 16, seed=0)


def test_a_folder_without_weights_is_seeded(tmp_path: Path):
    config = make_module(ModelSpec.model_validate(SMALL | {"family": "qwen2"}), 16).config.to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Model"}}))
    described = describe(run_of(source=str(tmp_path)))
    assert described.values is None
    assert described.config.model.family == "qwen2"
    assert "auto_map" not in described.config.model.settings


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_an_export_of_a_family_loads(tmp_path: Path, family: str):
    from transformers import AutoModelForCausalLM

    described = describe(run_of(family=family)).config
    for name, content in model_files(described).items():
        (tmp_path / name).write_bytes(encoded(content))
    values = initial_parameters(described.model, seed=2)
    save_file(values, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    ours = build_model(described.model, 16, seed=2).eval()
    tokens = torch.arange(16)[None]
    assert torch.equal(logits_of(loaded, tokens), logits_of(ours, tokens))


def test_damaged_weights_are_named(tmp_path: Path):
    make_module(ModelSpec.model_validate(SMALL | {"family": "gpt2"}), 16).config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="cannot be loaded"):
        describe(run_of(source=str(tmp_path)))


def test_values_of_a_kind_of_their_own_can_be_given():
    described = describe(run_of(family="mamba", weights="given", settings={"state_size": 4}))
    assert described.values is not None
    again = describe(run_of(family="mamba", weights="given", settings={"state_size": 4}))
    assert all(torch.equal(value, again.values[name]) for name, value in described.values.items())  # type: ignore[index]


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="cannot be had from the Hugging Face Hub") as caught:
        describe(run_of(source="hub:nobody/nothing"))
    assert "\n" not in str(caught.value)


def test_a_run_whose_peers_bring_the_model_is_described_by_a_file(tmp_path: Path):
    values = {"layer.weight": torch.arange(6.0).view(2, 3), "layer.bias": torch.ones(2), "steps": torch.tensor([1])}
    save_file(values, tmp_path / "start.safetensors")
    described = describe(run_of(family="own", source=str(tmp_path / "start.safetensors")))
    assert described.values is not None
    assert [(one.name, one.shape) for one in parameter_specs(described.config.model)] == [
        ("layer.bias", (2,)),
        ("layer.weight", (2, 3)),
    ]
