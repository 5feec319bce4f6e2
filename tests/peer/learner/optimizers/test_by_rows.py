"""Steps made some rows at a time: the same bits as whole steps, and no copies of a whole matrix."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from coordinator.run.inner_spec import InnerOptimizer, InnerSpec
from peer.learner.optimizers import bf16_step, by_rows
from peer.learner.optimizers.bf16_step import RoundedSteps
from peer.learner.optimizers.by_rows import elements_at_once
from peer.learner.optimizers.inner_optimizer import begin_state, export_state, import_state, make_optimizer

SHAPE = (1000, 24)  # the last piece is smaller, and ends within a block
IN_8_BITS = [name for name in get_args(InnerOptimizer) if InnerSpec(optimizer=name).keeps_8_bits]


def make_pieces_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_rows, "PIECE_ELEMENTS", 300 * SHAPE[1])
    monkeypatch.setattr(bf16_step, "BATCH_ELEMENTS", 300 * SHAPE[1])


def train(name: InnerOptimizer, dtype: torch.dtype, begun: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return an embedding matrix and a vector after some steps, with the optimizer's state."""
    random = torch.Generator().manual_seed(3)
    parameters = [nn.Parameter(torch.randn(shape, generator=random).to(dtype)) for shape in (SHAPE, (24,))]
    rounded = RoundedSteps(parameters) if dtype == torch.bfloat16 else None
    stepped = parameters if rounded is None else rounded.stand_ins
    spec = InnerSpec(optimizer=name, weight_decay=0.1)
    optimizer = make_optimizer(stepped, spec, stepped[:1])
    begin_state(optimizer, spec)
    if begun is not None:
        import_state(optimizer, begun)
    for step in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=random).to(dtype)
        if rounded is None:
            optimizer.step()
        else:
            rounded.step(optimizer, torch.tensor(0.5), step)
    values = {str(index): one.detach() for index, one in enumerate(parameters)}
    return values | {f"state.{field}": one for field, one in export_state(optimizer).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", IN_8_BITS)
def test_the_bits_are_those_of_whole_steps(
    name: InnerOptimizer, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(name, dtype)
    make_pieces_small(monkeypatch)
    parts = train(name, dtype)
    assert whole.keys() == parts.keys()
    for field, value in whole.items():
        assert torch.equal(value, parts[field]), field
    begun = {field.removeprefix("state."): value for field, value in parts.items() if field.startswith("state.")}
    assert train(name, dtype, begun)["state.0.step"] == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw8bit", "muon8bit"])
def test_nothing_large_is_copied_whole(
    name: InnerOptimizer, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bitsandbytes import functional

    seen, update = list[int](), functional.optimizer_update_8bit_blockwise

    def look(name: str, gradient: Tensor, *others: Any, **named: Any) -> None:
        seen.append(gradient.numel())
        update(name, gradient, *others, **named)

    monkeypatch.setattr(functional, "optimizer_update_8bit_blockwise", look)
    make_pieces_small(monkeypatch)
    train(name, dtype)
    assert sorted(set(seen)) == [(1000 - 3 * 256) * 24, 256 * 24]
    assert max(seen) == elements_at_once(SHAPE)


def test_a_large_matrix_is_stepped_in_pieces_of_whole_blocks() -> None:
    for rows, width in ((128_256, 2048), (50_304, 768), (32_000, 4095), (128, 1 << 16)):
        at_once = elements_at_once((rows, width))
        assert at_once <= max(by_rows.PIECE_ELEMENTS, 256 * width)
        assert at_once == rows * width or at_once % 256 == 0
    assert elements_at_once((1 << 24,)) == 1 << 24
    assert elements_at_once(()) == 1
