"""8-bit steps of large matrices: some rows after the others, which come to the same bits.

Beside the 8 bits, a step works on copies in float32. Of an embedding of 128,000 tokens these would be gigabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

PIECE_ELEMENTS = 1 << 22  # of a matrix that are stepped together
_BLOCK_ROWS = 256  # of any width are whole blocks, whose elements share a scale
_BLOCK_ELEMENTS = 256
_SCALES = "absmax"  # how such fields begin


def elements_at_once(shape: Sequence[int]) -> int:
    """How many of a tensor are stepped together: whole rows of a large matrix, all of another one."""
    elements = math.prod(shape)
    if len(shape) != 2 or elements <= PIECE_ELEMENTS:
        return elements
    return min(elements, shape[1] * max(_BLOCK_ROWS, PIECE_ELEMENTS // shape[1] // _BLOCK_ROWS * _BLOCK_ROWS))


def is_cut(optimizer: Optimizer, parameter: nn.Parameter) -> bool:
    """Whether it is stepped in several pieces."""
    at_once = elements_at_once(parameter.shape)
    return at_once < parameter.numel() and _SCALES + "1" in optimizer.state.get(parameter, {})


def by_rows(optimizer: Optimizer, parameter: nn.Parameter) -> Iterator[slice]:
    """Rows to step now; for as long as the optimizer has their part of the parameter's state, for all of it."""
    state, (rows, width) = optimizer.state[parameter], parameter.shape
    steps, at_once = state["step"], elements_at_once(parameter.shape) // width
    for first in range(0, rows, at_once):
        piece = slice(first, min(first + at_once, rows))
        optimizer.state[parameter] = {name: _part(name, one, piece, width) for name, one in state.items()}
        optimizer.state[parameter]["step"] = steps
        yield piece
    optimizer.state[parameter] = state | {"step": steps + 1}


def _part(name: str, value: Any, rows: slice, width: int) -> Any:
    """A view of what a field says of these rows."""
    if name.startswith(_SCALES):
        return value[..., rows.start * width // _BLOCK_ELEMENTS : -(-rows.stop * width // _BLOCK_ELEMENTS)]
    return value[..., rows, :] if isinstance(value, Tensor) and value.ndim > 1 else value  # or one for all elements


def step_by_rows(optimizer: Any) -> None:
    """Have this optimizer of bitsandbytes step large matrices so."""
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
