"""Weights that an organiser gives start the run bit for bit as in the file, or are refused in a sentence."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.utils import logging as logging_of_transformers

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from peer.model.buffers import kept_buffers
from peer.model.description import Description, describe
from peer.model.families import make_module
from peer.model.given import load_weights

SMALL: dict[str, Any] = {"hidden_size": 16, "layers": 2, "heads": 2, "intermediate_size": 24, "vocabulary": 64}
WEIGHTS = "model.safetensors"


def original(**model: Any) -> Any:
    """Return a model as if trained elsewhere."""
    torch.manual_seed(7)
    return make_module(ModelSpec.model_validate(SMALL | {"family": "llama"} | model), 16)


def describe_folder(folder: Path, **model: Any) -> Description:
    spec = ModelSpec.model_validate({"source": str(folder)} | model)
    return describe(RunConfig(model=spec, data=DataSpec(context_tokens=16)))


def assert_begins_as(described: Description, module: nn.Module) -> None:
    """Check that version 0 is this model, bit for bit."""
    expected = {name: one.detach().float() for name, one in module.named_parameters()}
    assert described.values is not None
    assert described.values.keys() == expected.keys()
    for name, value in described.values.items():
        assert value.dtype == torch.float32
        assert torch.equal(value.view(torch.int32), expected[name].contiguous().view(torch.int32)), name


def change_file(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["single file", "sharded", "bfloat16"])
def test_version_0_equals_the_file_bit_for_bit(tmp_path: Path, kind: str) -> None:
    module = original(settings={"num_key_value_heads": 1, "rope_theta": 500000.0})
    if kind == "bfloat16":
        module = module.to(torch.bfloat16)
    module.save_pretrained(tmp_path, max_shard_size="8KB" if kind == "sharded" else "1GB")
    assert (tmp_path / WEIGHTS).exists() == (kind != "sharded")
    assert_begins_as(describe_folder(tmp_path), module)


def test_weights_are_read_without_a_bar_of_somebody_elses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original().save_pretrained(tmp_path)
    capsys.readouterr()
    before = logging_of_transformers.is_progress_bar_enabled()
    logging_of_transformers.enable_progress_bar()
    try:
        describe_folder(tmp_path)
        assert logging_of_transformers.is_progress_bar_enabled(), "it is as it was"
    finally:
        if not before:
            logging_of_transformers.disable_progress_bar()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stored", ["lm_head.weight", "model.embed_tokens.weight"])
def test_tied_weights_are_read_under_either_name(tmp_path: Path, stored: str) -> None:
    module = original(settings={"tie_word_embeddings": True})
    module.save_pretrained(tmp_path)
    change_file(
        tmp_path,
        lambda file: {stored if "embed_tokens" in name else name: value for name, value in file.items()},
    )
    assert_begins_as(describe_folder(tmp_path), module)


def test_tied_weights_that_differ_are_refused(tmp_path: Path) -> None:
    original(settings={"tie_word_embeddings": True}).save_pretrained(tmp_path)
    change_file(tmp_path, lambda file: file | {"lm_head.weight": file["model.embed_tokens.weight"] + 1})
    with pytest.raises(UsageError, match=r"lm_head\.weight of its own"):
        describe_folder(tmp_path)


def test_a_missing_tensor_is_not_drawn_at_random(tmp_path: Path) -> None:
    original().save_pretrained(tmp_path)
    change_file(tmp_path, lambda file: {name: value for name, value in file.items() if "layers.1.mlp" not in name})
    said: list[logging.LogRecord] = []
    ear = logging.Handler()
    ear.emit = said.append  # type: ignore[method-assign]
    logging.getLogger("transformers").addHandler(ear)
    try:
        with pytest.raises(
            UsageError, match=r"lacks 3 of the model's tensors, the first of them model\.layers\.1\.mlp"
        ):
            describe_folder(tmp_path)
    finally:
        logging.getLogger("transformers").removeHandler(ear)
    assert not said  # `transformers` would say that they were drawn at random


def test_weights_that_the_config_gives_no_place_are_told_of(tmp_path: Path) -> None:
    original().save_pretrained(tmp_path)
    assert describe_folder(tmp_path).note == ""
    change_file(tmp_path, lambda file: file | {"model.layers.2.mlp.up_proj.weight": torch.ones(24, 16)})
    note = describe_folder(tmp_path).note
    assert "gives no place (1, the first of them model.layers.2.mlp.up_proj.weight): they are not used" in note


def test_a_wrong_prefix_is_not_drawn_at_random(tmp_path: Path) -> None:
    original().save_pretrained(tmp_path)
    change_file(tmp_path, lambda file: {f"net.{name}": value for name, value in file.items()})
    with pytest.raises(UsageError, match=r"it has others, as net\..*: are the names right"):
        describe_folder(tmp_path)


def test_weights_that_hold_nan_are_refused(tmp_path: Path) -> None:
    original().save_pretrained(tmp_path)
    change_file(tmp_path, lambda file: file | {"model.norm.weight": torch.full((16,), float("nan"))})
    with pytest.raises(UsageError, match=r"model\.norm\.weight in .* no finite numbers"):
        describe_folder(tmp_path)


def test_an_embedding_padded_beyond_the_tokenizer_is_kept(tmp_path: Path) -> None:
    """A table that was padded for speed keeps its rows, whatever vocabulary the run file names."""
    module = original()
    module.resize_token_embeddings(60, pad_to_multiple_of=64)
    module.save_pretrained(tmp_path)
    described = describe_folder(tmp_path, vocabulary=60)
    assert described.config.model.vocabulary == 64
    assert_begins_as(described, module)


def test_an_embedding_of_another_size_than_the_config_s_is_named(tmp_path: Path) -> None:
    original().save_pretrained(tmp_path)
    change_file(tmp_path, lambda file: file | {"model.embed_tokens.weight": torch.zeros(72, 16)})
    with pytest.raises(UsageError, match=r"model\.embed_tokens\.weight") as caught:
        describe_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_pytorch_model_bin_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    """Before, it silently began from seeded values. The command in the sentence makes a folder that can be read."""
    module, folder, name = original(), tmp_path / "old", "pytorch_model.bin"
    module.config.save_pretrained(folder)
    torch.save(module.state_dict(), folder / name)
    with pytest.raises(UsageError, match="holds weights as pytorch_model") as caught:
        describe_folder(folder)
    command = str(caught.value).split("python -c ")[1].strip('"')
    exec(compile(command, "the command", "exec"), {})
    assert_begins_as(describe_folder(tmp_path / "old-safe"), module)


def test_weights_of_another_library_are_not_passed_over(tmp_path: Path) -> None:
    original().config.save_pretrained(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"model\.gguf only; Muster reads safetensors"):
        describe_folder(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="holds an adapter"):
        describe_folder(tmp_path)


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    original().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(UsageError, match="are quantised"):
        describe_folder(tmp_path)


def test_buffers_with_values_of_their_own_are_refused(tmp_path: Path) -> None:
    """Before, they were lost from version 0, from training and from the export."""
    spec = {
        "settings": {
            "first_k_dense_replace": 0,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
        }
    }
    module = original(family="deepseek_v3", **spec)
    module.save_pretrained(tmp_path)
    assert describe_folder(tmp_path).values is not None  # biases of zero follow from the config
    bias = next(name for name in module.state_dict() if name.endswith("e_score_correction_bias"))
    change_file(tmp_path, lambda file: file | {bias: torch.ones_like(file[bias])})
    with pytest.raises(UsageError, match=r"has the buffer .*e_score_correction_bias, with values of its own"):
        describe_folder(tmp_path)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_buffers_that_a_file_holds_in_half_precision_follow_from_the_config(
    tmp_path: Path, precision: torch.dtype
) -> None:
    """Apertus is published in bfloat16, which rounds its -1e-6, and was refused."""
    module = original(family="apertus")
    module.to(precision).save_pretrained(tmp_path)
    eps = next(value for name, value in kept_buffers(module).items() if name.endswith(".eps"))
    assert eps.float() != -1e-6
    assert describe_folder(tmp_path).values is not None


@pytest.mark.parametrize(("family", "buffer"), [("apertus", ".beta"), ("minimax_m2", ".e_score_correction_bias")])
def test_buffers_that_a_folder_lacks_follow_from_its_config(tmp_path: Path, family: str, buffer: str) -> None:
    """Before, such a folder was refused as not whole, one of Muster's own exports among them."""
    more = {"settings": {"num_local_experts": 4, "num_experts_per_tok": 2}} if family == "minimax_m2" else {}
    module = original(family=family, **more)
    module.save_pretrained(tmp_path)
    buffers = kept_buffers(module)
    ends = tuple(f".{name.rpartition('.')[2]}" for name in buffers)  # a file may have other names before the last dot
    assert any(name.endswith(ends) for name in load_file(tmp_path / WEIGHTS))
    change_file(tmp_path, lambda file: {name: value for name, value in file.items() if not name.endswith(ends)})
    described = describe_folder(tmp_path)
    assert_begins_as(described, module)
    loaded, note = load_weights(described.config.model, 16, tmp_path)
    found = kept_buffers(loaded)
    assert note == ""
    assert any(name.endswith(buffer) for name in found)
    assert all(torch.equal(value, found[name]) for name, value in buffers.items())
    change_file(tmp_path, lambda file: {name: value for name, value in file.items() if "norm" not in name})
    with pytest.raises(UsageError, match=r"lacks [0-9]+ of the model's tensors, the first of them .*norm"):
        describe_folder(tmp_path)
