"""A run whose embedding is cut between rows is the same model in fragments of even size."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.identity import KeyVerifier
from peer.export.judging import Judge
from peer.export.verifier import verify_export
from peer.learner.evaluation import Evaluator
from peer.learner.learner import Learner, make_learner, parameters_of
from peer.learner.memory_estimate import footprint
from peer.learner.module_adapter import ModuleAdapter
from peer.model.build import build_model, initial_parameters
from peer.numerics.fragments import whole_tensors
from peer.storage.anchors import genesis_states, layouts_of
from tests.peer.exporting import CertifiedRun

WHOLE = RunConfig(
    seed=3,
    model=ModelSpec(hidden_size=32, layers=1, heads=2, intermediate_size=48),
    data=DataSpec(context_tokens=16, sequences_per_step=2, evaluation_tokens=512),
    inner=InnerSpec(optimizer="adamw8bit", warmup_steps=0),
    pace=PaceSpec(fragments=8, steps_per_version=4, min_group=1),
)
CUT = WHOLE.model_copy(update={"pace": WHOLE.pace.model_copy(update={"cut_embeddings": True})})
TABLE = "model.embed_tokens.weight"
TEXT = torch.arange(4000).remainder(251).to(torch.uint8)


class Text:
    def batch(self, window: int) -> Tensor:
        return TEXT[window : window + 34].view(2, 17).long()


def values_of(learner: Learner) -> dict[str, Tensor]:
    return whole_tensors(learner.fragments, parameters_of(learner))


def test_fragments_become_even() -> None:
    sizes = [[layout.elements for layout in layouts_of(config)] for config in (WHOLE, CUT)]
    assert [sum(one) for one in sizes] == [footprint(WHOLE).parameters] * 2
    assert max(sizes[0]) > 3.5 * sum(sizes[0]) / 8
    assert max(sizes[1]) < 1.25 * sum(sizes[1]) / 8
    parts = [part for layout in layouts_of(CUT) for part in layout.tensors if part.name == TABLE]
    assert len(parts) == math.ceil(256 * 32 / (sum(sizes[1]) / 8))
    assert footprint(CUT).bytes_in("host") < 0.6 * footprint(WHOLE).bytes_in("host")


def test_only_those_who_ask_have_another_run() -> None:
    said = RunConfig.parse("[pace]\ncut_embeddings = false", "run.toml")
    assert said.to_wire() == RunConfig().to_wire() != RunConfig.parse("[pace]\ncut_embeddings = true", "x").to_wire()
    assert RunConfig.from_wire(CUT.to_wire()) == CUT
    with pytest.raises(ValidationError, match="cannot be combined"):
        RunConfig(pace=CUT.pace, outer=OuterSpec(adoption="eager", moment_correction=0.5), inner=CUT.inner)


def test_version_0_has_the_same_values() -> None:
    drawn = initial_parameters(WHOLE.model, WHOLE.seed)
    for config in (WHOLE, CUT):
        found = whole_tensors(layouts_of(config), [state.anchor for state in genesis_states(config)])
        assert found.keys() == drawn.keys()
        assert all(torch.equal(found[name], drawn[name]) for name in drawn)
    given = genesis_states(CUT, drawn)
    assert [one.digest for one in given] == [one.digest for one in genesis_states(CUT)]


def test_a_learner_makes_the_same_steps_and_takes_over_parts() -> None:
    whole, cut = make_learner(WHOLE, Text()), make_learner(CUT, Text())
    for _ in range(3):
        assert whole.step().loss == pytest.approx(cut.step().loss, rel=1e-6)  # norms are sums in another order
    expected, found = values_of(whole), values_of(cut)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-4)
    at = next(one.index for one in cut.fragments if one.tensors[0].first_row)
    part = cut.fragments[at].tensors[0]
    cut.adopt(at, torch.full((cut.fragments[at].elements,), 0.5), None, 0, 0)
    embedding = dict(cut.model.named_parameters())[TABLE]
    rows = torch.arange(part.first_row, part.first_row + part.rows)
    assert (embedding[rows] == 0.5).all()
    assert int((embedding == 0.5).all(1).sum()) == part.rows
    again = make_learner(CUT, Text())
    again.import_state(cut.export_state())
    assert again.step().loss == cut.step().loss


def test_a_host_judges_the_same_model() -> None:
    losses = [
        Evaluator(config, TEXT).loss([state.anchor for state in genesis_states(config)]) for config in (WHOLE, CUT)
    ]
    assert losses[0] == losses[1]


def test_a_module_of_ones_own_is_read_and_written_in_parts() -> None:
    model = build_model(CUT.model, 16, CUT.seed)
    adapter, before = ModuleAdapter(model, layouts_of(CUT), CUT), genesis_states(CUT)
    for layout, state in zip(adapter.fragments, before, strict=True):
        out = torch.empty(layout.elements)
        adapter.snapshot(layout.index, out)
        assert torch.equal(out, state.anchor)
    adapter.adopt(0, before[0].anchor + 1, None, 0, 0)
    part = adapter.fragments[0].tensors[0]
    assert torch.equal(model.get_parameter(TABLE)[: part.rows].flatten(), before[0].anchor[: part.rows * 32] + 1)


def test_an_export_is_a_whole_model_that_proves_itself(tmp_path) -> None:
    run = CertifiedRun(CUT).advance()
    folder = run.write(tmp_path / "export")
    assert verify_export(folder, KeyVerifier()).parameters == footprint(CUT).parameters
    judged = Judge.of_export(folder, "cpu")
    for anchor, state in zip(judged._anchors, run.states, strict=True):
        assert torch.equal(anchor, state.anchor)
