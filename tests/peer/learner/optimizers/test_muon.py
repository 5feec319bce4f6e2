"""Muon with an 8-bit momentum, compared with torch's, whose momentum is float32."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Muon

from peer.learner.optimizers import muon
from peer.learner.optimizers.muon import COPIES, MOMENTUM, SCALES, Muon8bit, Workspace, orthogonalised

SHAPES = [(64, 64), (48, 96), (96, 48), (64, 64), (96, 48), (16, 20)]
SMALL_FROM = 4096  # elements


def matrices() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def make(parameters: list[nn.Parameter], momentum: float = 0.9, weight_decay: float = 0.1) -> Muon8bit:
    groups = [{"params": parameters, "weight_decay": weight_decay}]
    return Muon8bit(groups, 0.01, momentum, SMALL_FROM)


def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], number: int) -> None:
    generator = torch.Generator().manual_seed(100 + number)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def moved(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    return [after.detach() - before.detach() for after, before in zip(parameters, matrices(), strict=True)]


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.95])
def test_steps_are_those_of_torch(momentum: float) -> None:
    """They differ by the 8 bits of momentum, and by float32 products where torch uses bfloat16."""
    ours, theirs = matrices(), matrices()
    reference = Muon(theirs, lr=0.01, momentum=momentum, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    optimizer = make(ours, momentum)
    for number in range(10):
        step(optimizer, ours, number)
        step(reference, theirs, number)
    for here, there in zip(moved(ours), moved(theirs), strict=True):
        assert (here - there).norm() < 0.05 * there.norm()


def test_momentum_has_8_bits_where_matrices_are_large() -> None:
    parameters = matrices()
    optimizer = make(parameters)
    for number in range(3):
        step(optimizer, parameters, number)
    for parameter in parameters:
        state = optimizer.state[parameter]
        is_large = parameter.numel() >= SMALL_FROM
        assert state[MOMENTUM].dtype == (torch.uint8 if is_large else torch.float32)
        assert state[MOMENTUM].shape == parameter.shape
        assert state[MOMENTUM].unique().numel() > 100
        assert state[SCALES].numel() == (parameter.numel() // 256 if is_large else 0)


def test_stepping_matrices_together_or_apart_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    together, apart = matrices(), matrices()
    step(make(together), together, 0)
    monkeypatch.setattr(muon, "BATCH_ELEMENTS", 1)
    step(make(apart), apart, 0)
    for here, there in zip(together, apart, strict=True):
        assert torch.allclose(here, there, atol=1e-3 if muon._cpu_has_bfloat16() else 1e-6)


def test_matrices_without_a_gradient_stay() -> None:
    """Steps in bfloat16 are made some tensors at a time, and need this (`peer.learner.optimizers.bf16_step`)."""
    whole, parts = matrices(), matrices()
    first, second = make(whole), make(parts)
    for number in range(3):
        step(first, whole, number)
        for some in (parts[:2], parts[2:]):
            generator = torch.Generator().manual_seed(100 + number)
            drawn = [torch.randn(shape, generator=generator) for shape in SHAPES]
            for parameter, gradient in zip(parts, drawn, strict=True):
                parameter.grad = gradient if any(one is parameter for one in some) else None
            second.step()
    for here, there in zip(moved(whole), moved(parts), strict=True):
        assert (here - there).norm() < 0.02 * here.norm()


def near_orthogonal(drawn: Tensor, workspace: Workspace | None = None) -> Tensor:
    room = Workspace() if workspace is None else workspace
    matrices = room.matrices(0, tuple(drawn.shape), drawn.device)
    matrices.copy_(drawn)
    return orthogonalised(matrices, room).float()


@pytest.mark.parametrize("shape", [(2, 32, 32), (3, 16, 64)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = near_orthogonal(drawn)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.4
    assert values.max() < 1.4
    left, right = (torch.linalg.svd(one, full_matrices=False) for one in (drawn, found))
    turned = left.U @ left.Vh
    assert ((right.U @ right.Vh) - turned).norm() < 0.05 * turned.norm()


def test_a_matrix_of_zeros_stays_one() -> None:
    assert near_orthogonal(torch.zeros(2, 8, 12)).count_nonzero() == 0


def test_batches_take_turns_in_one_workspace() -> None:
    room, (first, second) = Workspace(), (torch.rand(2, 32, 48), torch.rand(3, 16, 16))
    alone = [near_orthogonal(one) for one in (first, second)]
    for drawn, expected in zip((first, second, first), (*alone, alone[0]), strict=True):
        assert torch.equal(near_orthogonal(drawn, room), expected)
    elements = max(first.numel(), second.numel())
    assert sum(len(flat) for flat in room._flat.values()) <= COPIES * elements


def test_the_same_steps_give_the_same_bits() -> None:
    digests = set()
    for _ in range(2):
        parameters = matrices()
        optimizer = make(parameters)
        for number in range(5):
            step(optimizer, parameters, number)
        digests.add(hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in parameters)).hexdigest())
    assert len(digests) == 1
