"""Modules that users bring to a session: they work, or are refused in a sentence at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from coordinator.run.adapter_spec import AdapterSpec
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from dht.errors import LocalError, UsageError
from peer.learner.module_adapter import ModuleAdapter
from peer.model.description import own_model
from peer.model.own_module import BufferWatch, frozen_digest, named_values
from peer.storage.anchors import layouts_of
from tests.checkout import ROOT
from tests.peer.adapting import write_base

RUN = RunConfig(pace=PaceSpec(fragments=2))


def with_parameter(value: torch.Tensor, trained: bool = True) -> nn.Module:
    model = nn.Linear(3, 2)
    model.register_parameter("extra", nn.Parameter(value, requires_grad=trained))
    return model


def test_the_loop_of_the_readme_begins_a_run() -> None:
    """Before, its model had fewer tensors than the run has fragments."""
    shown = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(shown.split("with Session")[0], names)
    described = own_model(names["run"], names["model"])
    ModuleAdapter(names["model"], layouts_of(described.config), described.config)


def test_a_run_does_not_begin_with_nan() -> None:
    """Before, it began, and each peer was told that its own training had diverged."""
    with pytest.raises(UsageError, match="extra holds values that are no finite numbers"):
        own_model(RUN, with_parameter(torch.tensor([1.0, float("nan")])))


def test_a_run_that_cannot_have_data_of_its_peers_is_a_sentence() -> None:
    """Before, it ended in a raw ValidationError, because a copy of a run's settings is not checked."""
    run = RUN.model_copy(update={"data": DataSpec(order="passes")})
    with pytest.raises(
        UsageError, match=r'a session does not take this run: data\.order = "passes" cannot be combined'
    ):
        own_model(run, nn.Linear(3, 2))
    with pytest.raises(UsageError, match=r"a session does not take this run: \[adapter\] needs"):
        own_model(RUN.model_copy(update={"adapter": AdapterSpec()}), nn.Linear(3, 2))


def test_an_empty_parameter_is_left_out() -> None:
    """Before, it ended in a raw ValueError."""
    model = with_parameter(torch.empty(0, 4))
    described = own_model(RUN, model)
    assert [one.name for one in described.config.model.tensors] == ["weight", "bias"]
    ModuleAdapter(model, layouts_of(described.config), described.config)


def test_a_complex_parameter_is_a_sentence() -> None:
    """Before, its imaginary part was dropped."""
    with pytest.raises(UsageError, match="extra is complex"):
        named_values(with_parameter(torch.ones(2, dtype=torch.complex64)))
    named_values(with_parameter(torch.ones(2, dtype=torch.complex64), trained=False))


def test_a_lazy_parameter_is_a_sentence_until_the_model_was_called() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(UsageError, match="call the model once before the session begins"):
        named_values(model)
    model(torch.ones(1, 3))
    assert named_values(model)["0.weight"].shape == (4, 3)


def test_a_parameter_on_the_meta_device_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="is on the meta device"):
        named_values(nn.Linear(2, 2, device="meta"))


def test_a_shared_parameter_is_one() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert list(named_values(model)) == ["0.weight", "0.bias", "1.bias"]


def test_other_frozen_values_are_another_model() -> None:
    """Before, two sessions with LoRA over different bases trained together without an error."""
    base = torch.arange(6.0).view(2, 3)
    one = frozen_digest(with_parameter(base, trained=False))
    assert one == frozen_digest(with_parameter(base.clone(), trained=False))
    others = [base + 1e-6, base.view(3, 2), base.bfloat16(), base[:1]]
    assert one not in [frozen_digest(with_parameter(other, trained=False)) for other in others]
    assert frozen_digest(with_parameter(base)) == b""
    assert frozen_digest(with_parameter(torch.empty(0), trained=False)) == b""


def test_of_a_model_with_an_adapter_the_adapter_alone_is_the_run_s(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    def adapted(seed: int) -> nn.Module:
        base = AutoModelForCausalLM.from_pretrained(write_base(tmp_path / str(seed), seed))
        return cast(nn.Module, get_peft_model(base, LoraConfig(r=4, target_modules="all-linear")))

    one, same, another = adapted(1), adapted(1), adapted(2)
    described = own_model(RUN, one)
    assert {entry.name.partition(".lora_")[2] for entry in described.config.model.tensors} == {
        "A.default.weight", "B.default.weight",
    }  # fmt: skip
    assert frozen_digest(one) == frozen_digest(same) != frozen_digest(another)
    replica = ModuleAdapter(same, layouts_of(described.config), described.config)
    values = named_values(one)
    for layout in replica.fragments:
        anchor = torch.cat([values[spec.name].reshape(-1) for spec in layout.tensors])
        replica.adopt(layout.index, anchor, None, 0, 0)
    assert all(torch.equal(value, values[name]) for name, value in named_values(same).items())


def test_statistics_of_norms_are_known_beforehand_and_other_buffers_after_a_step() -> None:
    """Before, one of two sessions evaluated at 0.99 and the other at 0.51, without a warning."""
    norms = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False))
    assert BufferWatch(norms).known() == ["1.running_mean"]
    assert BufferWatch(nn.BatchNorm1d(4)).known() == ["running_mean"]
    model = with_parameter(torch.ones(2))
    model.register_buffer("count", torch.zeros(1))
    model.register_buffer("mask", torch.ones(1))
    watch = BufferWatch(model)
    assert (watch.known(), watch.changed()) == ([], [])
    model.count += 1
    assert watch.changed() == ["count"]


def test_training_that_has_diverged_is_said_by_the_replica() -> None:
    """Before, a session that trained to NaN was told that its peer had ended."""
    model = nn.Linear(3, 2)
    described = own_model(RUN, model)
    replica = ModuleAdapter(model, layouts_of(described.config), described.config)
    index = next(layout.index for layout in replica.fragments if layout.tensors[0].name == "weight")
    out = torch.empty(replica.fragments[index].elements)
    replica.snapshot(index, out)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    with pytest.raises(LocalError, match="training diverged: weight"):
        replica.snapshot(index, out)
