"""8-bit steps of large matrices, a few rows at a time, with the same bits as in one piece.

In addition to the 8-bit state, a step needs float32 copies. Those of an embedding of 128,000 tokens would be gigabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

PIECE_ELEMENTS = 1 << 22  # of a matrix, stepped together
_BLOCK_ROWS = 256  # of any width make whole blocks, whose elements share a scale
_BLOCK_ELEMENTS = 256
_SCALES = "absmax"  # prefix of the fields with scales


def elements_at_once(shape: Sequence[int]) -> int:
    """Return how many elements of a tensor are stepped together: whole rows of a large matrix, else all."""
    elements = math.prod(shape)
    if len(shape) != 2 or elements <= PIECE_ELEMENTS:
        return elements
    return min(elements, shape[1] * max(_BLOCK_ROWS, PIECE_ELEMENTS // shape[1] // _BLOCK_ROWS * _BLOCK_ROWS))


def is_cut(optimizer: Optimizer, parameter: nn.Parameter) -> bool:
    """Whether this parameter is stepped in several pieces."""
    at_once = elements_at_once(parameter.shape)
    return at_once < parameter.numel() and _SCALES + "1" in optimizer.state.get(parameter, {})


def by_rows(optimizer: Optimizer, parameter: nn.Parameter) -> Iterator[slice]:
    """Yield the rows to step in turn; meanwhile the optimizer's state of this parameter is cut to those rows."""
    state, (rows, width) = optimizer.state[parameter], parameter.shape
    steps, at_once = state["step"], elements_at_once(parameter.shape) // width
    for first in range(0, rows, at_once):
        piece = slice(first, min(first + at_once, rows))
        optimizer.state[parameter] = {name: _part(name, one, piece, width) for name, one in state.items()}
        optimizer.state[parameter]["step"] = steps
        yield piece
    optimizer.state[parameter] = state | {"step": steps + 1}


def _part(name: str, value: Any, rows: slice, width: int) -> Any:
    """Return a view of these rows' part of a state field."""
    if name.startswith(_SCALES):
        return value[..., rows.start * width // _BLOCK_ELEMENTS : -(-rows.stop * width // _BLOCK_ELEMENTS)]
    return value[..., rows, :] if isinstance(value, Tensor) and value.ndim > 1 else value  # or one for all elements


def step_by_rows(optimizer: Any) -> None:
    """Have this bitsandbytes optimizer step large matrices a few rows at a time."""
    step_whole: Callable[[Any, nn.Parameter, int, int], None] = optimizer.update_step

    def update_step(group: Any, parameter: nn.Parameter, group_index: int, index: int) -> None:
        if not is_cut(optimizer, parameter):
            step_whole(group, parameter, group_index, index)
            return
        values, gradient = parameter.data, parameter.grad
        assert gradient is not None
        for rows in by_rows(optimizer, parameter):
            parameter.data = values[rows]
            parameter.grad = gradient[rows]
            step_whole(group, parameter, group_index, index)
        parameter.data = values
        parameter.grad = gradient

    optimizer.update_step = update_step
