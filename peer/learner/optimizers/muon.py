"""Muon with its momentum in 8 bits: a matrix moves along its orthogonalised momentum.

After K. Jordan et al. 2024, with Nesterov momentum. Updates are as long as AdamW's would be (Liu et al. 2502.16982),
so one rate fits both. Matrices of one shape are orthogonalised together, and so are tall and wide ones whose sides
match.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from peer.learner.optimizers.code_tables import code_table

BATCH_ELEMENTS = 1 << 22  # orthogonalised together, unless one matrix is larger
COPIES = 4  # workspace per batch: the matrices, their next iterate, and two for the factor between them
BLOCK_ELEMENTS = 256  # share a scale, as in bitsandbytes' optimizers
UPDATE_RMS = 0.2  # about that of AdamW's updates
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # each iteration turns X into (a + b·XXᵀ + c·(XXᵀ)²)·X
SMALLEST_NORM = 1e-7

MOMENTUM, SCALES = "momentum", "momentum_absmax"


class Rows(Protocol):
    """The rows that one process holds of matrices that are split over several."""

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """Return the shape of the whole matrix."""
        ...

    def whole(self, parameter: nn.Parameter, rows: Tensor) -> Tensor:
        """Return the whole of a tensor shaped like the parameter, given this process's rows."""
        ...

    def own(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        """Return this process's rows of a whole matrix."""
        ...


class _AllRows:
    """The rows of a process that holds whole matrices."""

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        return tuple(parameter.shape)

    def whole(self, parameter: nn.Parameter, rows: Tensor) -> Tensor:
        return rows

    def own(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        return whole


WHOLE: Rows = _AllRows()


class Muon8bit(Optimizer):
    """Muon over matrices only; those below `min_8bit_elements` keep a float32 momentum."""

    def __init__(
        self,
        groups: Iterable[Any],
        learning_rate: float,
        momentum: float,
        min_8bit_elements: int,
        rows: Rows = WHOLE,
    ) -> None:
        super().__init__(groups, {"lr": learning_rate, "weight_decay": 0.0})
        self._beta = momentum
        self._min_8bit_elements = min_8bit_elements
        self._rows = rows
        self._room = Workspace()
        self._code = code_table(signed=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one step of every matrix that has a gradient."""
        for group in self.param_groups:
            for batch in self._batches([one for one in group["params"] if one.grad is not None]):
                shape = tuple(sorted(self._rows.shape(batch[0])))
                room = self._room.matrices(0, (len(batch), *shape), batch[0].device)
                for place, one in zip(room, batch, strict=True):
                    place.copy_(_wide(self._rows.whole(one, self._direction(one))))
                updates = orthogonalised(room, self._room)
                for parameter, update in zip(batch, updates, strict=True):
                    whole = self._rows.shape(parameter)
                    length = UPDATE_RMS * math.sqrt(max(whole))
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    rows = self._rows.own(parameter, _as_is(update, whole))
                    parameter.add_(rows, alpha=-group["lr"] * length)

    def init_state(self, _group: Any, parameter: nn.Parameter, *_place: int) -> None:
        """Begin a state without momentum."""
        is_large = parameter.numel() >= self._min_8bit_elements
        blocks = -(-parameter.numel() // BLOCK_ELEMENTS) if is_large else 0
        dtype = torch.uint8 if is_large else torch.float32
        state = self.state[parameter]
        state[MOMENTUM] = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
        state[SCALES] = torch.zeros(blocks, device=parameter.device)

    def _batches(self, parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        """Yield matrices with the same two sides, together at most `BATCH_ELEMENTS` unless one is larger."""
        alike: dict[tuple[object, ...], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            alike[parameter.device, *sorted(self._rows.shape(parameter))].append(parameter)
        for same in alike.values():
            at_once = max(1, BATCH_ELEMENTS // math.prod(self._rows.shape(same[0])))
            for first in range(0, len(same), at_once):
                yield same[first : first + at_once]

    def _direction(self, parameter: nn.Parameter) -> Tensor:
        """Return Nesterov's direction, float32: the gradient mixed with the momentum it has been added to."""
        gradient = parameter.grad
        assert gradient is not None
        if not self.state[parameter]:
            self.init_state(None, parameter)
        state = self.state[parameter]
        momentum = self._read(state).lerp_(gradient, 1 - self._beta)
        self._write(state, momentum)
        return gradient.lerp(momentum, self._beta)

    def _read(self, state: dict[str, Tensor]) -> Tensor:
        """Return the momentum in float32, which may share the state's memory."""
        if state[MOMENTUM].dtype == torch.float32:
            return state[MOMENTUM]
        from bitsandbytes.functional import dequantize_blockwise

        self._code = self._code.to(state[MOMENTUM].device)
        found: Tensor = dequantize_blockwise(
            state[MOMENTUM], absmax=state[SCALES], code=self._code, blocksize=BLOCK_ELEMENTS
        )
        return found

    def _write(self, state: dict[str, Tensor], momentum: Tensor) -> None:
        if momentum is state[MOMENTUM]:
            return
        from bitsandbytes.functional import quantize_blockwise

        quantised, how = quantize_blockwise(momentum, code=self._code, blocksize=BLOCK_ELEMENTS)
        state[MOMENTUM].copy_(quantised)
        state[SCALES].copy_(how.absmax)


class Workspace:
    """Memory that batches of matrices use in turn; allocated anew each time, it would lie in holes of glibc's heap.

    It is bfloat16 where the hardware multiplies that, else float32.
    """

    def __init__(self) -> None:
        self._flat: dict[int, Tensor] = {}

    def matrices(self, place: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return memory for a batch, with undefined content; each `place` has its own."""
        elements = math.prod(shape)
        flat = self._flat.get(place)
        if flat is None or len(flat) < elements or flat.device != device:
            dtype = torch.bfloat16 if device.type == "cuda" or _cpu_has_bfloat16() else torch.float32
            flat = self._flat[place] = torch.empty(elements, dtype=dtype, device=device)
        return flat[:elements].view(shape)


def orthogonalised(matrices: Tensor, room: Workspace) -> Tensor:
    """Return the matrices with all singular values brought near 1 by Newton–Schulz iterations.

    The shape is (matrices, rows, columns), with rows ≤ columns. The input is overwritten, and the result lies in the
    workspace. A matrix of zeros stays zero.
    """
    a, b, c = COEFFICIENTS
    (count, rows, _), device = matrices.shape, matrices.device
    found = matrices.div_(matrices.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST_NORM))
    better = room.matrices(1, tuple(matrices.shape), device)
    gram, polynomial = (room.matrices(place, (count, rows, rows), device) for place in (2, 3))
    for _ in range(ITERATIONS):
        torch.matmul(found, found.mT, out=gram)
        torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=polynomial)
        torch.baddbmm(found, polynomial, found, beta=a, out=better)
        found, better = better, found
    return found


@cache
def _cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware; emulation is slower than float32."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


def _as_is(wide: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo `_wide` for a matrix of this shape."""
    return wide.mT if shape[0] > shape[1] else wide
