"""Runs that fetch from the Hub, with the real libraries, from a hub on this machine."""

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
from peer.data.tally import Loading
from peer.data.windows import load_tokens
from peer.model.description import describe
from peer.model.families import make_module
from tests.peer.local_hub import COMMIT, LocalHub
from tests.peer.matrix.materials import VOCABULARY, model_keys, prose, write_data_set, write_tokenizer


def test_a_run_pins_the_commit_of_its_data_set(hub: LocalHub) -> None:
    described = describe(RunConfig(data=DataSpec(source="hub", path=write_data_set(hub), context_tokens=16)))
    assert described.config.data.revision == COMMIT
    later = described.config.data.model_copy(update={"revision": "dead" + "0" * 36})
    with pytest.raises(UsageError, match="cannot be had from the Hugging Face Hub"):
        load_tokens(later)


def test_rows_of_a_data_set_are_read_in_its_order(hub: LocalHub) -> None:
    spec = DataSpec(source="hub", path=write_data_set(hub), context_tokens=16, end_token=0)
    data = load_tokens(spec)
    texts = bytes([*data.train.tolist(), *data.heldout.tolist()]).decode().split("\0")
    assert sorted(texts[:-1]) == sorted(prose(seed) for seed in range(200))


def test_a_busy_hub_is_waited_for(hub: LocalHub) -> None:
    """HTTP 429 comes for the list of files and for a file: the libraries wait for the former, Muster for the latter."""
    spec = DataSpec(source="hub", path=write_data_set(hub), revision=COMMIT, context_tokens=16)
    quiet = load_tokens(spec)
    told: list[str] = []
    hub.busy, hub.busy_api = 1, 1
    assert load_tokens(spec, loading=Loading(lambda what, _: told.append(what))).digest == quiet.digest
    assert (hub.busy, hub.busy_api) == (0, 0)


def test_a_model_and_its_tokenizer_come_from_the_hub(hub: LocalHub) -> None:
    """Version 0 is the repository's model, and only the host fetches it."""
    folder = hub.folder("models", "some/model")
    torch.manual_seed(3)
    original: Any = make_module(ModelSpec.model_validate(model_keys("gpt2") | {"vocabulary": VOCABULARY}), 16)
    original.save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    (folder / "pytorch_model.bin").write_bytes(b"nobody asks for this")
    data = DataSpec(source="hub", path=write_data_set(hub), context_tokens=16, tokenizer="hub:some/model")
    described = describe(RunConfig(model=ModelSpec(source=f"hub:some/model@{COMMIT[:8]}"), data=data))
    assert described.values is not None
    for name, value in original.named_parameters():
        assert torch.equal(described.values[name], value), name
    fixed = described.config
    assert (fixed.data.end_token, fixed.data.tokenizer) == (0, "hub:some/model")
    assert load_tokens(fixed.data, fixed.model.vocabulary).train.dtype == torch.uint16
    assert not any("pytorch_model.bin" in request for request in hub.asked)


def test_a_repository_that_the_hub_lacks_is_one_sentence(hub: LocalHub) -> None:
    for config in (
        RunConfig(model=ModelSpec(source="hub:no/body")),
        RunConfig(data=DataSpec(source="hub", path="no/body")),
        RunConfig(data=DataSpec(source="hub", path=write_data_set(hub), tokenizer="hub:no/body")),
    ):
        with pytest.raises(UsageError, match="cannot be had from the Hugging Face Hub") as caught:
            describe(config)
        assert "\n" not in str(caught.value)


def test_the_library_s_source_goes_through_a_tokenizer(tmp_path: Path) -> None:
    """Before, the named tokenizer was not used, and the run trained on bytes."""
    (tmp_path / "one.py").write_text("the river ran under a bridge\n" * 300)
    (tmp_path / "two.py").write_bytes(b"# \xe9\n" * 400)
    tokenizer = write_tokenizer(tmp_path)
    data = DataSpec(tokenizer=str(tokenizer), context_tokens=16)
    described = describe(RunConfig(model=ModelSpec(vocabulary=VOCABULARY), data=data))
    fixed = described.config.data
    assert fixed.tokenizer == ""
    assert fixed.tokenizer_sha256
    for name in "abcdefghij":
        (tmp_path / f"{name}.py").write_text(prose(ord(name)) * 40)
    read = load_tokens(fixed, VOCABULARY, described.files, root=tmp_path)
    tokens = read.train.tolist() + read.heldout.tolist()
    assert tokens.count(0) == 12  # an end token for each file
    assert 256 <= max(tokens) < VOCABULARY
