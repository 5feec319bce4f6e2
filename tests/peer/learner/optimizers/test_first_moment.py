"""The first moment takes over the part of a merge beyond a learner's own work (docs/adr/0041)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coordinator.run.inner_spec import InnerOptimizer, InnerSpec
from peer.learner.optimizers.first_moment import Correction, correct
from peer.learner.optimizers.inner_optimizer import export_state, make_optimizer, set_rate

RATE = 1e-2
SPEC = InnerSpec(weight_decay=0.0, learning_rate=RATE)


def stepped(
    name: InnerOptimizer, elements: int, device: str = "cpu", steps: int = 30
) -> tuple[Optimizer, nn.Parameter]:
    """Return an optimizer after equal gradients, whose second moment is their square, and its parameter, set to 0."""
    parameter = nn.Parameter(torch.zeros(elements // 64, 64, device=device))
    gradient = (torch.linspace(-1, 1, elements) + 0.01).view_as(parameter).to(device)
    optimizer = make_optimizer([parameter], SPEC.model_copy(update={"optimizer": name}))
    set_rate(optimizer, RATE)
    parameter.grad = gradient
    for _ in range(steps):
        optimizer.step()
    parameter.data.zero_()
    return optimizer, parameter


def next_steps(
    name: InnerOptimizer, elements: int, missed: Tensor | None, late_steps: int = 0, steps: int = 1
) -> Tensor:
    """Return the parameter after further steps from 0, with or without a correction for `missed`."""
    optimizer, parameter = stepped(name, elements)
    if missed is not None:
        correct(optimizer, [(parameter, missed)], Correction(0.5, RATE, 4, late_steps, SPEC.beta1, SPEC.beta2))
    for _ in range(steps):
        optimizer.step()
    return parameter.detach().clone()


@pytest.mark.parametrize("name", ["adamw", "adamw8bit"])
def test_the_next_step_goes_further_by_a_share_of_what_was_missed(name: InnerOptimizer) -> None:
    elements = 128  # so few that bitsandbytes keeps the state in float32
    missed = torch.linspace(-0.02, 0.03, elements).view(-1, 64)
    more = next_steps(name, elements, missed) - next_steps(name, elements, None)
    expected = missed * 0.5 / 4 * SPEC.beta1 / (1 - SPEC.beta1**31)
    torch.testing.assert_close(more, expected, rtol=2e-3, atol=1e-6)


def test_eight_bits_take_it_as_well_as_they_can() -> None:
    elements = 8192
    missed = torch.randn(elements, generator=torch.Generator().manual_seed(1)).view(-1, 64) * 0.02
    more = next_steps("adamw8bit", elements, missed) - next_steps("adamw8bit", elements, None)
    expected = next_steps("adamw", elements, missed) - next_steps("adamw", elements, None)
    assert float((more - expected).norm() / expected.norm()) < 0.15
    assert float(more.flatten() @ expected.flatten() / (more.norm() * expected.norm())) > 0.99


def test_a_share_of_the_moment_that_has_faded_is_not_put_back() -> None:
    missed = torch.full((2, 64), 0.02)
    plain = next_steps("adamw", 128, None)
    now, late = (next_steps("adamw", 128, missed, late_steps=steps) - plain for steps in (0, 2))
    torch.testing.assert_close(late, now * SPEC.beta1**2, rtol=1e-4, atol=1e-8)


def test_in_the_end_all_of_the_share_was_gone() -> None:
    """The sum is Σ β^k of share · missed / steps: with β1 = 0.9, ten times its first term."""
    missed = torch.full((2, 64), 0.02)
    more = next_steps("adamw", 128, missed, steps=150) - next_steps("adamw", 128, None, steps=150)
    torch.testing.assert_close(more, missed * 0.5 / 4 * SPEC.beta1 / (1 - SPEC.beta1), rtol=0.05, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_moments_on_a_gpu_take_what_comes_from_the_host() -> None:
    missed = torch.full((128, 64), 0.02)
    moved = {}
    for device in ("cpu", "cuda"):
        optimizer, parameter = stepped("adamw8bit", 8192, device)
        correct(optimizer, [(parameter, missed)], Correction(0.5, RATE, 4, 0, SPEC.beta1, SPEC.beta2))
        optimizer.step()
        moved[device] = parameter.detach().cpu()
    close = torch.isclose(moved["cuda"], moved["cpu"], rtol=0.05, atol=1e-3)
    assert float(close.float().mean()) > 0.999  # a moment between two of the 8-bit values may become either


@pytest.mark.parametrize("name", ["adamw", "adamw8bit"])
def test_an_optimizer_without_state_stays_without(name: InnerOptimizer) -> None:
    parameter = nn.Parameter(torch.zeros(64, 64))
    optimizer = make_optimizer([parameter], SPEC.model_copy(update={"optimizer": name}))
    correct(optimizer, [(parameter, torch.ones(64, 64))], Correction(1.0, RATE, 4, 0, SPEC.beta1, SPEC.beta2))
    assert export_state(optimizer) == {}
