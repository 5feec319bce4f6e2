"""Runs with every kind of user's data, tokenizer and model, from the run file to an export that `transformers` loads.

In one cell of the matrix, a run file is described, two learners train on its data and certify versions, and the
certified state is exported, verified and loaded. Logits and greedy text are those of the certified parameters.
"""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.identity import KeyVerifier
from peer.data.windows import load_tokens
from peer.export.verifier import verify_export
from peer.lab.laboratory import Laboratory
from peer.lab.options import LabOptions, lab_config
from peer.learner.evaluation import FlatModel
from peer.model.description import Description, describe
from peer.model.families import make_module
from peer.numerics.outer_optimizer import OuterState
from tests.peer.exporting import CertifiedRun, logits_of
from tests.peer.local_hub import LocalHub
from tests.peer.matrix.materials import (
    FAMILIES,
    VOCABULARY,
    model_keys,
    write_corpus,
    write_data_set,
    write_tokenizer,
)

STEPS, CONTEXT, WRITTEN_TOKENS = 8, 16, 8
TOKENS = 1_000_000  # of a corpus, at most: the standard library alone has seven million
TOKENIZERS = ("bytes", "bpe")
KINDS = [*itertools.product(("stdlib", "text", "jsonl", "parquet", "tokens", "hub"), TOKENIZERS)]
CELLS = [(*kind, family) for kind in KINDS for family in FAMILIES]


# every family, and every source with each tokenizer: the rest of the cross product tests nothing new
QUICK = {(*KINDS[number % len(KINDS)], family) for number, family in enumerate(FAMILIES)}


def run_config(hub: LocalHub, source: str, tokenizer: str, model: dict[str, Any]) -> RunConfig:
    data: dict[str, Any] = {"source": source, "tokens_max": TOKENS}
    file = write_tokenizer(hub.root) if tokenizer == "bpe" else None
    if file is not None:
        data["tokenizer"] = str(file)
        model = {"vocabulary": VOCABULARY} | model
    if source == "hub":
        data["path"] = write_data_set(hub)
    elif source != "stdlib":
        data["path"] = write_corpus(hub.root, source, tokenizer=file)
    return RunConfig(
        model=ModelSpec.model_validate(model),
        data=DataSpec.model_validate(
            {"context_tokens": CONTEXT, "sequences_per_step": 2, "evaluation_tokens": 256} | data
        ),
        inner=InnerSpec(optimizer="adamw", warmup_steps=0, learning_rate=1e-2),
        outer=OuterSpec(learning_rate=0.5, momentum=0.8, contribution_codec="fp32", result_codec="fp32", merge="mean"),
        pace=PaceSpec(fragments=2, steps_per_version=4, quorum=2, min_group=1),
    )


def certified_states(described: Description, steps: int = STEPS) -> list[OuterState]:
    """Train two learners of this run, check that they agree, and return the certified states."""
    config = described.config
    data = load_tokens(config.data, config.model.vocabulary, described.files)
    options = LabOptions(lab_config(config, 2, steps, {}), 2, steps, eval_every_steps=steps, workers=1)
    with Laboratory(options, data, values=described.values) as lab:
        lab.run()
        one, other = lab.context.active.values()
        assert one.states == other.states
        assert one.versions >= 2
        return [one.anchors.current(fragment) for fragment in range(len(lab.context.layouts))]


def export(described: Description, target: Path, states: list[OuterState]) -> None:
    """Export these states as if peers of the run had certified them."""
    tokenizer = Path(described.files.tokenizer).read_bytes() if described.files.tokenizer else None
    run = CertifiedRun(described.config, described.values, tokenizer)
    for chain, state in zip(run.chains, states, strict=True):
        run.certify(chain, state=state)
    run.write(target)
    assert verify_export(target, KeyVerifier()).fixes_config


def written_by(model: Any, tokens: list[int]) -> list[int]:
    """Generate tokens greedily, without a cache."""
    for _ in range(WRITTEN_TOKENS):
        with torch.inference_mode():
            tokens = [*tokens, int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())]
    return tokens


def assert_loads(target: Path, described: Description, states: list[OuterState]) -> None:
    """Check that `transformers` loads the certified model from the folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded: Any = AutoModelForCausalLM.from_pretrained(target).eval()
    tokens = [7, 3, 11, 5]
    if (target / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(target)
        tokens = tokenizer("The river")["input_ids"]
        assert tokenizer.decode(tokens) == "The river"
    ids = torch.tensor([tokens])
    flat = FlatModel(described.config)
    with torch.no_grad(), flat.under([state.anchor for state in states]) as ours:
        assert torch.equal(logits_of(loaded, ids), logits_of(ours, ids))
        written = loaded.generate(ids, max_new_tokens=WRITTEN_TOKENS, do_sample=False, eos_token_id=None)
        assert written[0].tolist() == written_by(ours, tokens)


def conforms(hub: LocalHub, source: str, tokenizer: str, family: str) -> None:
    described = describe(run_config(hub, source, tokenizer, model_keys(family)))
    states = certified_states(described)
    target = hub.root / "export"
    export(described, target, states)
    assert (target / "tokenizer.json").exists() == (source != "tokens" or tokenizer == "bpe")
    assert_loads(target, described, states)


@pytest.mark.parametrize(("source", "tokenizer", "family"), sorted(QUICK))
def test_a_run_is_faithful(hub: LocalHub, source: str, tokenizer: str, family: str) -> None:
    conforms(hub, source, tokenizer, family)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "tokenizer", "family"), [cell for cell in CELLS if cell not in QUICK])
def test_every_other_run_is_faithful(hub: LocalHub, source: str, tokenizer: str, family: str) -> None:
    conforms(hub, source, tokenizer, family)


@pytest.mark.parametrize("kind", ["single file", "sharded", "bfloat16"])
@pytest.mark.parametrize("family", [*FAMILIES])
def test_a_run_that_begins_from_given_weights_begins_as_the_file(tmp_path: Path, family: str, kind: str) -> None:
    """Version 0 equals the file bit for bit, and an export of it loads as the original does."""
    keys = model_keys(family) | {"vocabulary": 64, "weights": "seeded"}
    torch.manual_seed(5)
    original: Any = make_module(ModelSpec.model_validate({"settings": {"pad_token_id": None}} | keys), CONTEXT).eval()
    saved = original
    if kind == "bfloat16":
        for parameter in original.parameters():
            parameter.data = parameter.data.bfloat16().float()
        saved = copy.deepcopy(original).bfloat16()
    folder = tmp_path / "given"
    saved.save_pretrained(folder, max_shard_size="4KB" if kind == "sharded" else "1GB")
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (kind == "sharded")
    described = describe(RunConfig(model=ModelSpec(source=str(folder)), data=DataSpec(context_tokens=CONTEXT)))
    assert described.values is not None
    expected = {name: value.detach().float().contiguous() for name, value in original.named_parameters()}
    assert described.values.keys() == expected.keys()
    for name, value in described.values.items():
        assert torch.equal(value.view(torch.int32), expected[name].view(torch.int32)), name
    run = CertifiedRun(described.config, described.values)
    for chain, state in zip(run.chains, run.states, strict=True):
        run.certify(chain, state=state)
    run.write(tmp_path / "export")
    exported = load_file(tmp_path / "export" / "model.safetensors")
    assert all(torch.equal(exported[name], expected[name]) for name in expected)
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[7, 3, 11, 5]])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export").eval()
    assert torch.equal(logits_of(loaded, ids), logits_of(original, ids))
