"""Parameters in float32 and in bfloat16: gradients are measured from the loaded values, and small steps add up."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerOptimizer, InnerSpec, Precision
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import LocalError
from peer.learner.devices import Placement
from peer.learner.learner import Learner, make_learner
from peer.learner.optimizers.bf16_step import RoundedSteps, round_stochastically
from tests.extra import extra

QUICK = ("adamw8bit", "muon8bit")
CONFIG = RunConfig(
    versions=40,
    model=ModelSpec(hidden_size=64, layers=1, heads=2, intermediate_size=72, vocabulary=64),
    data=DataSpec(context_tokens=16, sequences_per_step=2),
    pace=PaceSpec(fragments=3, steps_per_version=6),
)


class Counting:
    """Batches in which each token determines the next."""

    def batch(self, window: int) -> Tensor:
        starts = torch.tensor([[window], [7 * window + 3]])
        return (starts + 5 * torch.arange(17)).remainder(64)


def learner(optimizer: InnerOptimizer = "adamw8bit", precision: Precision = "bfloat16", key: bytes = b"me") -> Learner:
    inner = InnerSpec(optimizer=optimizer, precision=precision, warmup_steps=4)
    return make_learner(CONFIG.model_copy(update={"inner": inner}), Counting(), Placement(rounding_key=key))


def read(one: Learner, fragment: int) -> Tensor:
    out = torch.empty(one.fragments[fragment].elements)
    one.snapshot(fragment, out)
    return out


def test_rounding_is_right_on_average_and_never_far() -> None:
    values = torch.tensor([1.0, -1.0, 1.0 + 2**-9, -3.14159, 1e-20, 0.0, 65000.0]).repeat(20_000, 1)
    rounded = round_stochastically(values.clone(), torch.Generator().manual_seed(1))
    assert rounded.dtype == torch.bfloat16
    spacing = values.abs() * 2**-7
    assert ((rounded.float() - values).abs() <= spacing).all()
    exact = values.bfloat16().float() == values
    assert torch.equal(rounded.float()[exact], values[exact])
    off = (rounded.double().mean(0) - values[0].double()).abs()
    assert (off <= 6 * spacing[0].double() / 20_000**0.5).all()


@pytest.mark.parametrize("optimizer", [*QUICK, *extra(one for one in get_args(InnerOptimizer) if one not in QUICK)])
def test_bfloat16_learns(optimizer: InnerOptimizer) -> None:
    one = learner(optimizer)
    one.set_progress(4)
    losses = [one.step().loss for _ in range(60)]
    assert losses[0] == pytest.approx(4.16, abs=0.3)
    assert losses[-1] < 1.5
    assert {parameter.dtype for parameter in one.model.parameters()} == {torch.bfloat16}
    assert one.gradient.dtype == torch.bfloat16


def test_steps_too_small_for_bfloat16_add_up() -> None:
    """A thousand steps of a tenth of the distance between two numbers; rounded to the nearest, none would count."""
    parameter = torch.nn.Parameter(torch.full((4096,), 1.0, dtype=torch.bfloat16))
    parameter.grad = torch.ones_like(parameter)
    steps = RoundedSteps([parameter])
    optimizer = torch.optim.SGD(steps.stand_ins, lr=0.1 * 2**-8)
    for seed in range(1000):
        steps.step(optimizer, torch.tensor(1.0), seed)
    assert parameter.double().mean().item() == pytest.approx(1 - 1000 * 0.1 * 2**-8, rel=0.01)
    assert all(one.untyped_storage().nbytes() <= 4 for one in steps.stand_ins)


def test_an_outer_gradient_is_measured_from_what_was_loaded() -> None:
    """Loading rounds; without a step there is nothing to contribute, however often anchors are adopted."""
    one = learner()
    anchor = torch.randn(one.fragments[1].elements, generator=torch.Generator().manual_seed(5))
    one.adopt(1, anchor, None, 0, 0)
    assert torch.equal(read(one, 1), anchor)
    for scale in (0.9, 1.1, 0.7):
        new = anchor * scale
        one.adopt(1, new, anchor, 0, 0)
        assert torch.allclose(read(one, 1), new, rtol=0, atol=1e-6)
        anchor = new
    held = torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()])
    assert not torch.equal(held.float(), held.float() + 1e-3), "the model itself holds bfloat16"
    assert held.dtype == torch.bfloat16


def test_the_work_of_steps_is_contributed_whole() -> None:
    one = learner()
    anchor = read(one, 0)
    one.adopt(0, anchor, None, 0, 0)
    loaded = one.export_state()["theta"][: len(anchor)].float()
    one.step()
    stepped = one.export_state()["theta"][: len(anchor)].float()
    assert torch.allclose(anchor - read(one, 0), loaded - stepped, rtol=0, atol=1e-6)
    snapshot = read(one, 0)
    one.step()
    before = read(one, 0)
    one.adopt(0, anchor * 0.5, snapshot, 1, 32)
    assert torch.allclose(read(one, 0), anchor * 0.5 + (before - snapshot), rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", get_args(InnerOptimizer))
def test_a_resumed_learner_makes_the_same_bits(optimizer: InnerOptimizer) -> None:
    straight, resumed = learner(optimizer), learner(optimizer)
    straight.set_progress(9)
    for _ in range(4):
        straight.step()
    straight.adopt(1, read(straight, 1) * 0.7, read(straight, 1), 4, 128)
    resumed.import_state(straight.export_state())
    rest = [straight.step() for _ in range(4)]
    resumed.rest()
    assert [resumed.step() for _ in range(4)] == rest
    expected, actual = straight.export_state(), resumed.export_state()
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_two_peers_round_differently() -> None:
    mine, yours = learner(), learner(key=b"you")
    for one in (mine, yours):
        one.step()
    assert not torch.equal(mine.export_state()["theta"], yours.export_state()["theta"])


def test_a_state_of_the_other_precision_is_refused() -> None:
    with pytest.raises(LocalError, match="another run"):
        learner().import_state(learner(precision="float32").export_state())
