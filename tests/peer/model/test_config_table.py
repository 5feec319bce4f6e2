"""Configs reach learner and export as `transformers` reads them, and a family is tried before it may run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.export.model_files import CONFIG, encoded, fixed_files
from peer.model.build import build_model
from peer.model.config_table import agree, rope_of_release_4, with_settings
from peer.model.description import describe, is_same_run
from peer.model.families import make_config

SMALL: dict[str, Any] = {"hidden_size": 16, "layers": 2, "heads": 4, "intermediate_size": 24, "vocabulary": 64}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
}


def described(context_tokens: int = 16, room_bytes: int | None = None, **model: Any) -> RunConfig:
    spec = ModelSpec.model_validate(SMALL | model)
    return describe(RunConfig(model=spec, data=DataSpec(context_tokens=context_tokens)), room_bytes).config


def from_folder(folder: Path, config: dict[str, Any], **model: Any) -> RunConfig:
    """Describe a run from a folder that holds only a config."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return described(source=str(folder), **model)


def as_transformers_reads(folder: Path, config: dict[str, Any]) -> Any:
    """Return the config that `AutoConfig` itself reads."""
    from transformers import AutoConfig

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return AutoConfig.from_pretrained(folder)


def exported(config: RunConfig) -> dict[str, Any]:
    return json.loads(encoded(fixed_files(config)[CONFIG]))


ROPES = {
    "transformers 4": {"rope_theta": 500000.0},
    "transformers 5": {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
    "scaled, transformers 4": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "an old name, transformers 4": {"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "nulls": {"rope_theta": 500000.0, "rope_scaling": None, "bos_token_id": None, "head_dim": None},
}


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_rope_theta_of_a_folder_does_not_become_10000(tmp_path: Path, rope: dict[str, Any]) -> None:
    """Before, known names were kept and nulls dropped, so `AutoConfig`'s reading of old names was silently lost."""
    read = as_transformers_reads(tmp_path, LLAMA | rope)
    run = from_folder(tmp_path, LLAMA | rope)
    built: Any = build_model(ModelSpec.from_wire(run.model.to_wire()), 16, seed=1)
    assert built.config.rope_parameters == read.rope_parameters
    assert built.config.rope_parameters["rope_theta"] == 500000.0
    assert built.config.bos_token_id == read.bos_token_id
    again = as_transformers_reads(tmp_path / "export", exported(run))
    assert again.rope_parameters == read.rope_parameters


def test_an_export_states_rope_for_transformers_4_too(tmp_path: Path) -> None:
    """Before, it stated only the form of release 5, from which release 4 makes another model."""
    for name, rope in ROPES.items():
        said = exported(from_folder(tmp_path, LLAMA | rope))
        assert said["rope_theta"] == 500000.0
        assert (said["rope_scaling"] is not None) == ("rope_scaling" in rope and name != "nulls")
    scaled = exported(from_folder(tmp_path, LLAMA | ROPES["scaled, transformers 4"]))
    assert ROPES["scaled, transformers 4"]["rope_scaling"].items() <= scaled["rope_scaling"].items()
    assert rope_of_release_4("gemma3_text", described(family="gemma3_text").model.settings_table) == {
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
    }
    assert rope_of_release_4("gpt_neox", described(family="gpt_neox").model.settings_table)["rotary_pct"] == 0.25


def test_an_export_states_no_rope_for_transformers_4_that_it_does_not_have() -> None:
    """Before, transformers 5 took half of it, and did not load an export of gemma4_text."""
    table = described(family="gemma4_text", settings={"hidden_size_per_layer_input": 0}).model.settings_table
    assert table["rope_parameters"]["full_attention"]["rope_type"] == "proportional"
    assert rope_of_release_4("gemma4_text", table) == {}


def test_settings_may_say_rope_as_either_release_does(tmp_path: Path) -> None:
    for settings in ({"rope_theta": 7.0}, {"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}):
        assert described(settings=settings).model.settings_table["rope_parameters"]["rope_theta"] == 7.0
        run = from_folder(tmp_path, LLAMA | ROPES["transformers 4"], settings=settings)
        assert run.model.settings_table["rope_parameters"]["rope_theta"] == 7.0
    base = {"rope_parameters": {"rope_theta": 9.0, "rope_type": "linear", "factor": 2.0}}
    assert with_settings(base, {"rope_scaling": None})["rope_parameters"] == {"rope_theta": 9.0}


def test_a_config_without_key_value_heads_builds_what_transformers_builds(tmp_path: Path) -> None:
    """Before, the host built half of the heads, and every learner blamed its transformers."""
    run = from_folder(tmp_path, LLAMA)
    assert run.model.settings_table["num_key_value_heads"] == 4
    build_model(ModelSpec.from_wire(run.model.to_wire()), 16, seed=1)


def test_a_window_reaches_learner_and_export(tmp_path: Path) -> None:
    config = LLAMA | {"model_type": "mistral", "sliding_window": 8, "num_key_value_heads": 2, "head_dim": 6}
    run = from_folder(tmp_path, config)
    built: Any = build_model(ModelSpec.from_wire(run.model.to_wire()), 16, seed=1)
    assert (built.config.sliding_window, exported(run)["sliding_window"]) == (8, 8)
    assert (built.config.head_dim, exported(run)["head_dim"]) == (6, 6)


def test_an_export_of_a_family_needs_no_transformers_to_be_described() -> None:
    """Before, verification rendered the config again, so it failed under another release."""
    run = described(family="gpt2", settings={"n_inner": 40})
    assert exported(run) == {
        "model_type": "gpt2",
        "dtype": "float32",
        **run.model.settings_table,
    }
    assert exported(run)["architectures"] == ["GPT2LMHeadModel"]
    assert exported(run)["n_inner"] == 40


ENCODERS = ("bert", "roberta", "electra", "roformer", "camembert", "xlm-roberta", "rembert", "ernie", "megatron-bert")


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_that_see_the_future_are_refused(family: str) -> None:
    """Before, they ran, and their certified loss fell to nearly zero."""
    with pytest.raises(UsageError, match="sees the tokens that it is to predict; write is_decoder = true"):
        described(family=family)


def test_an_encoder_that_is_told_to_be_a_decoder_runs() -> None:
    assert described(family="bert", settings={"is_decoder": True}).model.settings_table["is_decoder"] is True


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("gemma3", "its part for text is the family gemma3_text"),
        ("llama4", "its part for text is the family llama4_text"),
        ("qwen3_5", "its part for text is the family qwen3_5_text"),
        ("blt", "takes no hidden_size of 16; set its sizes under"),
    ],
)
def test_composite_families_do_not_build_sizes_of_their_own(family: str, words: str) -> None:
    """Before, they ignored `hidden_size` and `layers`, and allocated up to 108 thousand million parameters."""
    with pytest.raises(UsageError, match=words):
        described(family=family)


def test_a_context_longer_than_n_positions_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"context_tokens = 32 is more .* its n_positions is 16") as caught:
        described(32, family="gpt2", settings={"n_positions": 16})
    assert "\n" not in str(caught.value)


def test_memory_is_looked_at_before_anything_is_allocated() -> None:
    with pytest.raises(UsageError, match="choose smaller sizes under"):
        described(8, 1 << 30, family="llama", hidden_size=16384, layers=256, settings={"rope_theta": 1e4})


def test_a_learner_does_not_allocate_what_its_manifest_does_not_list() -> None:
    """Before, a manifest with a few tensors could make it build a model of any size."""
    spec = described(family="llama", settings={"rope_theta": 1e4}).model
    large = spec.settings_table | {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 256}
    forged = spec.model_copy(update={"settings": json.dumps(large)})
    with pytest.raises(UsageError, match="builds another model than the run's; install the host's, 5"):
        build_model(forged, 16, seed=1)


def test_a_field_of_a_newer_transformers_names_the_one_to_install() -> None:
    spec = described(family="gpt2").model
    newer = json.dumps(spec.settings_table | {"gate_of_2027": 3, "nothing_of_2027": None})
    with pytest.raises(UsageError, match=r"has a gate_of_2027, which .* install the host's, 5"):
        make_config(spec.model_copy(update={"settings": newer}), 16)
    harmless = json.dumps(spec.settings_table | {"nothing_of_2027": None})
    make_config(spec.model_copy(update={"settings": harmless}), 16)


def test_tables_of_two_releases_agree_where_both_say_something() -> None:
    """A host that has updated its transformers goes on with its run."""
    assert agree({"a": 1, "transformers_version": "5.1"}, {"a": 1, "b": 2, "transformers_version": "5.2"})
    assert not agree({"a": 1, "b": 2}, {"a": 2})


def test_seeded_values_stay_what_they_were() -> None:
    """A description fixes shapes and starts as before: uniform, ones, zeros."""
    run = described(family="gpt2")
    values = build_model(run.model, 16, seed=1).state_dict()
    assert torch.equal(values["transformer.h.0.ln_1.weight"], torch.ones(16))
    assert 0.2 < float(values["transformer.wte.weight"].abs().max()) <= 0.25


def test_a_host_goes_on_with_its_run_under_another_transformers() -> None:
    """Every field stands in the manifest, and another release writes others: the run is the same."""
    run = described(family="gpt2")
    later = json.dumps(run.model.settings_table | {"transformers_version": "6.0", "gate_of_2027": None})
    assert is_same_run(run, run.model_copy(update={"model": run.model.model_copy(update={"settings": later})}))
    other = json.dumps(run.model.settings_table | {"layer_norm_epsilon": 1e-3})
    assert not is_same_run(run, run.model_copy(update={"model": run.model.model_copy(update={"settings": other})}))
    assert not is_same_run(run, run.model_copy(update={"seed": run.seed + 1}))


def test_a_manifest_cannot_have_an_export_name_code() -> None:
    run = described(family="gpt2")
    evil = json.dumps(run.model.settings_table | {"auto_map": {"AutoModelForCausalLM": "evil.Model"}})
    with pytest.raises(UsageError, match="must not hold auto_map"):
        fixed_files(run.model_copy(update={"model": run.model.model_copy(update={"settings": evil})}))
